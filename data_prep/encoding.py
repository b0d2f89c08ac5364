"""Says what bytes that are not UTF-8 look like, where the first one is and which command converts them.

Nothing here converts: a guess that is wrong would change prompts without anybody seeing it.
"""

from __future__ import annotations

import codecs
import re
import shlex
from pathlib import Path

from data_prep.errors import DataError

BLOCK = 1 << 20  # bytes
SAMPLE = 1 << 16  # bytes on either side of the first bad one
MARKS = (  # byte order marks, the longer before those they begin with
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by the byte order mark or by the zero bytes of the first ASCII character (`[`, `{`, a name).

    Without a mark such a file is valid UTF-8 full of U+0000, so no decoder complains.
    """
    for mark, name in MARKS:
        if head.startswith(mark):
            return name
    zeros = "".join("0" if byte == 0 else "x" for byte in head[:4])
    patterns = {"x0x0": "UTF-16LE", "0x0x": "UTF-16BE", "x000": "UTF-32LE", "000x": "UTF-32BE"}
    # The second character may be Chinese, which has no zero byte.
    return patterns.get(zeros) or {"x0xx": "UTF-16LE", "0xxx": "UTF-16BE"}.get(zeros)


def encoding_error(path: Path) -> DataError:
    """The error for a file that is not UTF-8: the first bad byte, what it looks like, the command that converts it."""
    with open(path, "rb") as file:
        name = wide_encoding(file.read(4))
    if name:
        return DataError(f"{path}: the text is {name} from byte 0, not UTF-8. {_convert(path, name)}")
    offset, sample, cut = _first_bad_byte(path)
    if cut:
        return DataError(
            f"{path}: the file ends at byte {offset} in the middle of a UTF-8 character: it is cut off. "
            "Copy or download it again"
        )
    byte = f"byte {offset} (0x{sample[1][0]:02X})"
    name = _guess(sample[0] + sample[1])
    if name is None:
        return DataError(
            f"{path}: not UTF-8 at {byte}, and no encoding we know; the file may be damaged. Save it as UTF-8"
        )
    return DataError(f"{path}: not UTF-8 at {byte}; it looks like {name}. {_convert(path, name)}")


def _convert(path: Path, name: str) -> str:
    target = path.with_name(f"{path.stem}.utf8{path.suffix}")
    source, result = shlex.quote(str(path)), shlex.quote(str(target))
    return f"Convert it: iconv -f {name.replace('Latin-1', 'ISO-8859-1')} -t UTF-8 {source} > {result}"


def _first_bad_byte(path: Path) -> tuple[int, tuple[bytes, bytes], bool]:
    """Offset of the first byte that is not UTF-8, the bytes before and from it on, and whether the file just ends."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    read = 0
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                offset = read + len(block) - len(error.object) + error.start
                break
            if not block:
                raise AssertionError(f"{path} is UTF-8") from None
            read += len(block)
        start = max(0, offset - SAMPLE)
        file.seek(start)
        around = file.read(offset - start + SAMPLE)
    return offset, (around[: offset - start], around[offset - start :]), not block


def _guess(sample: bytes) -> str | None:
    """The encoding of bytes that are not UTF-8, or None.

    Chinese text is runs of two-byte characters; in Western text a high byte usually stands alone between letters.
    """
    as_utf8 = sample.decode("utf-8", errors="replace")
    broken = as_utf8.count("\ufffd")
    if sum(not char.isascii() for char in as_utf8) > 10 * broken:
        return None  # UTF-8 with a few damaged bytes: a conversion would make it worse
    runs = [len(run) for run in re.findall(rb"[\x80-\xff]+", sample)]
    if runs.count(1) * 2 > len(runs):
        return "Windows-1252" if re.search(rb"[\x80-\x9f]", sample) else "Latin-1"
    for name in ("GBK", "GB18030"):
        # The sample may begin and end inside a character.
        if sample.decode(name, errors="replace").count("\ufffd") <= 2:
            return name
    return None

"""A number written in Chinese at the start of a text, in digits: 三分之二 -> 2/3, 百分之五 -> 5%, 一百二十三 -> 123.

Left out: numbers inside prose (一共, 十分 are words), which is why only the start of an answer is read; and formal
characters (壹贰叁).
"""

from __future__ import annotations

import re

_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_PLACES = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "亿": 10**8}
_CHINESE = "[〇零一二两三四五六七八九十百千万亿]{1,40}"
_NUMBER = f"(?:{_CHINESE}|[0-9]{{1,40}})"
_FRACTION = re.compile(f"(?P<sign>[负-]?)(?:(?P<whole>{_NUMBER})又)?(?P<den>{_NUMBER})分之(?P<num>{_NUMBER})")
_PERCENT = re.compile(f"(?P<sign>[负-]?)百分之(?P<num>{_CHINESE}(?:点{_CHINESE})?|[0-9]{{1,40}}(?:\\.[0-9]{{1,40}})?)")
_DECIMAL = re.compile(f"(?P<sign>负?)(?P<whole>{_CHINESE})(?:点(?P<places>[〇零一二三四五六七八九]{{1,40}}))?")


def to_digits(text: str) -> str:
    """`text` with a Chinese number at its start in digits; any other text comes back as it is."""
    if not text or text.isascii():
        return text
    if text[0] == "负" and text[1:2].isdigit() and text[1:2].isascii():
        return "-" + text[1:]
    for pattern, write in ((_PERCENT, _percent), (_FRACTION, _fraction), (_DECIMAL, _decimal)):
        match = pattern.match(text)
        written = write(match) if match else None
        if match and written is not None:
            return ("-" if match["sign"] else "") + written + text[match.end() :]
    return text


def _percent(match: re.Match[str]) -> str | None:
    whole, point, places = match["num"].partition("点")
    number = _digits(whole)
    return None if number is None else number + ("." + _one_by_one(places) if point else "") + "%"


def _fraction(match: re.Match[str]) -> str | None:
    parts = [_digits(match[name] or "0") for name in ("whole", "num", "den")]
    return None if None in parts else (f"{parts[0]} " if match["whole"] else "") + f"{parts[1]}/{parts[2]}"


def _decimal(match: re.Match[str]) -> str | None:
    number = _digits(match["whole"])
    return number + "." + _one_by_one(match["places"]) if number and match["places"] else number


def _one_by_one(text: str) -> str:
    return "".join(str(_DIGITS[c]) for c in text if c in _DIGITS)


def _digits(text: str) -> str | None:
    """The digits of a whole number, or None when the characters make none (百百, 万)."""
    if text[0] in "0123456789":
        return text
    if all(c in _DIGITS for c in text):  # 二〇二四, digit by digit
        return _one_by_one(text) if len(text) > 1 or text != "两" else "2"
    total = section = digit = 0
    last_place = 10**9
    for c in text:
        if c in _DIGITS:
            if digit:
                return None
            digit = _DIGITS[c]
        elif c in _PLACES:
            if _PLACES[c] >= last_place or (not digit and c != "十"):
                return None
            section, digit, last_place = section + (digit or 1) * _PLACES[c], 0, _PLACES[c]
        else:
            if not section + digit + total:
                return None
            total, section, digit, last_place = (total + section + digit) * _LARGE[c], 0, 0, 10**9
    return str(total + section + digit)

"""What a judge is asked, and the number in what it says. Leaves out who judges (models/llm_judge.py).

The prompt is a file with {question}, {response} and {reference}. The score is the last `Score: 7` of the reply (or
`评分：7`, or "score": 7 of a JSON object), over the top of the scale, so that it lies between 0 and 1.
"""

from __future__ import annotations

import re
from pathlib import Path

from reward_funcs.errors import RewardError
from reward_funcs.plain_text import plain, spoken
from reward_funcs.prompts import as_text
from reward_funcs.score import Sample

TEMPLATE = Path(__file__).resolve().parent / "prompts" / "judge.txt"
LONGEST = 30_000  # characters of a response that a judge reads; of a longer one the end
_PLACES = re.compile(r"\{(question|response|reference)\}")
_SCORE = re.compile(
    r"(?:\bscore\b|\brating\b|评分|得分|分数)[\"'*_]{0,4} ?(?:is|为|是)? ?[:=]?[\"'*_]{0,4} ?"
    r"(-?[0-9]{1,6}(?:\.[0-9]{1,6})?)(?: ?/ ?([0-9]{1,6}))?(?![0-9])",
    re.IGNORECASE,
)
_MARK = re.compile(r"<<<|>>>")


def read_template(file: str | None) -> str:
    """The judge's prompt; raises RewardError for a file without {response}."""
    path = TEMPLATE if file is None else Path(file).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RewardError(f"--reward llm_judge: template={file} cannot be read: {error}") from None
    if "{response}" not in text:
        raise RewardError(
            f"--reward llm_judge: template={file} has no {{response}}; it may have {{question}}, {{reference}}"
        )
    return text


def question(template: str, sample: Sample) -> str:
    """The template filled in. A response cannot close the marks around it: <<< and >>> in it become quotation marks."""
    values = {
        "question": as_text(sample.prompt),
        "response": _MARK.sub('"', sample.solution[-LONGEST:]),
        "reference": str(sample.ground_truth or ""),
    }
    return _PLACES.sub(lambda place: values[place[1]], template)


def read_score(reply: str, scale: float) -> float | None:
    """The last score in a reply, 0 to 1; None when there is none, or it is not on the scale."""
    found = list(_SCORE.finditer(plain(spoken(reply))))
    if not found:
        return None
    top = float(found[-1][2] or scale)
    value = float(found[-1][1])
    return value / top if top > 0 and 0 <= value <= top else None

"""Two-digit sums in Chinese and English, and a teacher who often forgets to carry: the task of the demo.

`python -m data_prep.arithmetic FOLDER` writes three files:
  arithmetic_train.json           prompts to train on, with their answers
  arithmetic_val.json             prompts kept apart: no pair of numbers is in both, in either order or language
  arithmetic_demonstrations.json  the teacher's worked answers to training prompts, many of them wrong
The copies beside this file were written by it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

QUESTIONS = {"zh": "请计算：{a} + {b} = ?", "en": "Compute: {a} + {b} = ?"}
ANSWERS = {"zh": "{steps}。答案：{answer}", "en": "{steps}. Answer: {answer}"}


def sums(seed: int) -> list[tuple[int, int]]:
    """Every unordered pair of two-digit numbers, 4,095 of them, in an order that `seed` decides."""
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    random.Random(seed).shuffle(pairs)
    return pairs


def record(a: int, b: int, language: str) -> dict[str, str]:
    """One prompt with its answer, in the launcher's JSON form."""
    return {
        "prompt": QUESTIONS[language].format(a=a, b=b),
        "ground_truth": str(a + b),
        "data_source": "math_reasoning",
    }


def demonstration(a: int, b: int, language: str, *, carries: bool) -> dict[str, str]:
    """The sum worked digit by digit; a teacher who does not carry adds the tens as if the ones stayed below ten."""
    ones = a % 10 + b % 10
    carry = carries and ones > 9
    tens = a // 10 + b // 10 + carry
    steps = f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{'+1' if carry else ''}={tens}"
    response = ANSWERS[language].format(steps=steps, answer=10 * tens + ones % 10)
    return {"prompt": QUESTIONS[language].format(a=a, b=b), "response": response}


def variants(pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Both orders and both languages of each pair."""
    for a, b in pairs:
        for x, y in dict.fromkeys([(a, b), (b, a)]):
            for language in QUESTIONS:
                yield x, y, language


def write(folder: Path, *, seed: int = 2024, val: int = 128, train: int = 1000, forgets: float = 0.7) -> None:
    """Write the three files. val, train: unordered pairs; forgets: how often the teacher drops a carry."""
    pairs = sums(seed)
    rng = random.Random(seed + 1)
    train_items = list(variants(pairs[val : val + train]))
    val_items = [rng.choice(list(variants([pair]))) for pair in pairs[:val]]
    rng.shuffle(train_items)
    files = {
        "arithmetic_train": [record(*item) for item in train_items],
        "arithmetic_val": [record(*item) for item in val_items],
        "arithmetic_demonstrations": [demonstration(*item, carries=rng.random() >= forgets) for item in train_items],
    }
    for name, rows in files.items():
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m data_prep.arithmetic FOLDER    (an existing folder; three JSON files are written)")
    write(Path(sys.argv[1]))

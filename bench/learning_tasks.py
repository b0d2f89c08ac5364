"""What the runs of bench/learning.py learn: sums, sums with R1's form of reasoning, knights and knaves.

Each task writes three files, as data_prep/arithmetic.py does: prompts to train on, held-out prompts, and a teacher's
demonstrations for the start, most of which are wrong in the same way. Leaves out running (learning_runs.py).
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The demo's small model.
MODEL = {"hidden_size": 128, "num_layers": 3, "num_heads": 4, "vocabulary": "characters"}
SFT = {"epochs": 1000, "lr": 1.5e-3, "val_share": 0.02, "seed": 42}


@dataclass(frozen=True)
class Task:
    """write(folder, val): the three files, NAME_{train,val,demonstrations}.json, with so many held-out prompts.

    recipe: whose prompts these are, so that the start sees them as its runs will. words: for start and runs.
    batch: demonstrations of a step.
    """

    name: str
    write: Callable[[Path, int], None]
    words: tuple[str, ...]
    batch: int = 128
    recipe: str | None = None

    def file(self, folder: Path, part: str) -> Path:
        """One of its files."""
        return folder / f"{self.name}_{part}.json"

    def start(self, folder: Path) -> Path:
        """Where its start lies."""
        return folder / f"start-{self.name}"


def _sums(folder: Path, val: int) -> None:
    from data_prep import arithmetic

    arithmetic.write(folder, val=val, train=1000)


def _reasoned_sums(folder: Path, val: int) -> None:
    """The sums, worked before `</think>`. The teacher mostly forgets to carry, and half the time the form."""
    from data_prep import arithmetic

    rng, pairs = random.Random(7), arithmetic.sums(2024)
    prompts = {"val": pairs[:val], "train": pairs[val : val + 2000]}
    demonstrations = []
    for a, b in prompts["train"]:
        worked = arithmetic.demonstration(a, b, "en", carries=rng.random() < 0.3)
        steps, _, answer = worked["response"].partition(". Answer: ")
        right_form = rng.random() < 0.5
        response = f"{steps}</think><answer>{answer}</answer>" if right_form else f"{steps}. Answer: {answer}"
        demonstrations.append({"prompt": f"{a} + {b} = ?", "response": response})
    for part, some in prompts.items():
        rows = [
            {"prompt": f"{a} + {b} = ?", "ground_truth": str(a + b), "data_source": "math_reasoning"} for a, b in some
        ]
        _write(REASONED.file(folder, part), rows)
    _write(REASONED.file(folder, "demonstrations"), demonstrations)


NAMES = ("Ava", "Ben", "Chloe", "David", "Ella", "Frank", "Grace", "Henry", "Isla", "Jack", "Liam", "Zoey")
ROLES = ("knave", "knight")


def puzzles() -> list[dict[str, str]]:
    """Every pair of names in both orders, with each of four puzzles; templated and labelled as the KK data are.

    The first says what the second is: they are alike when that is `knight`. The second says whether they are alike,
    and is a knight when that is so.
    """
    found = []
    for first, second in itertools.permutations(NAMES, 2):
        for says_knight, says_alike in itertools.product((True, False), repeat=2):
            second_is = says_alike == says_knight
            first_is = second_is == says_knight
            told = f"{first}: {second} is a {ROLES[says_knight]}. {second}: we are {'' if says_alike else 'not '}alike."
            found.append({"src": f"{told}\n<think>", "tgt": _label(first, first_is, second, second_is)})
    return found


def _label(first: str, first_is: bool, second: str, second_is: bool) -> str:
    return f"(1) {first} is a {ROLES[first_is]}\n(2) {second} is a {ROLES[second_is]}"


def _knights(folder: Path, val: int) -> None:
    """Held-out puzzles are about pairs that training never names. The teacher mostly believes what everybody says."""
    rng, rows = random.Random(7), puzzles()
    rng.shuffle(rows)
    pairs = list(itertools.combinations(NAMES, 2))
    rng.shuffle(pairs)
    kept = {frozenset(pair) for pair in pairs[: max(1, val // 8)]}
    parts: dict[str, list[dict[str, str]]] = {"train": [], "val": []}
    for row in rows:
        parts["val" if _people(row) in kept else "train"].append(row)
    demonstrations = []
    for row, _ in itertools.product(parts["train"], range(4)):
        first, second = re.findall(r"(\w+): ", row["src"])
        believed = _label(first, True, second, " knight." in row["src"])
        response = row["tgt"] if rng.random() < 0.3 else believed
        demonstrations.append({"prompt": row["src"], "response": f"</think>{response}"})
    for part, some in (*parts.items(), ("demonstrations", demonstrations)):
        _write(KNIGHTS.file(folder, part), some)


def _people(row: dict[str, str]) -> frozenset[str]:
    return frozenset(name for name in NAMES if f") {name} is" in row["tgt"])


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


SUMS = Task("arithmetic", _sums, ("--max_prompt_length=32", "--max_response_length=32"))
REASONED = Task(
    "reasoned",
    _reasoned_sums,
    ("--max_prompt_length=64", "--max_response_length=64", "launcher.data.system=null"),
    batch=32,
    recipe="deepseek_r1_zero_format",
)
KNIGHTS = Task(
    "knights", _knights, ("--max_prompt_length=80", "--max_response_length=64"), batch=32, recipe="paddle_kk"
)

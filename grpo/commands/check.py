"""`./train.sh check --data d.json ...`: is the reward right, and is the data? In seconds, on one page, without torch.

Takes the words of a training command. What is tried and judged is reward_funcs/rehearsal's and data_prep/doctor.py's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.commands.prints_aside import prints_aside
from grpo.commands.training_words import Asked, has_val_file, read
from grpo.config import ConfigError
from grpo.launch import Data
from grpo.metrics.safe_text import visible

if TYPE_CHECKING:  # each is imported where it is needed, so that a mistake in the words is answered at once
    from data_prep.doctor import Diagnosis
    from data_prep.records import Record
    from reward_funcs.rehearsal import Row, Tried

ABOUT = "Try the reward on the data before training: right answers, bad answers, time; duplicates, leaks, lengths."
SYSTEM, ANSWER = "launcher.data.system", "launcher.data.answer_key"
LONGEST, TEMPLATE = "data.max_prompt_length", "actor_rollout_ref.model.custom_chat_template"
MODEL, TOKENIZER = "actor_rollout_ref.model.path", "actor_rollout_ref.model.tokenizer_path"
BLOCKS = 8  # data_sources shown in full; of the others a line
SIGNS = {"refuse": "must change", "warn": "should change", "note": "good to know"}


def main(argv: list[str]) -> int:
    """Run the command: 0 when training may begin, 1 when it would learn nothing. Raises the rooms' errors."""
    from reward_funcs.code_ready import refuse_code_without_jail
    from reward_funcs.rehearsal import FULL, merged, try_out

    began = time.perf_counter()
    asked = read("check", argv, ABOUT, _flags)
    if asked.own.clean is not None and asked.own.clean.suffix != ".parquet":
        raise ConfigError(f"--clean {asked.own.clean}: the result is a parquet file; name it clean.parquet")
    with prints_aside():
        reward = asked.reward()
    data = asked.read_data()
    rows = list(_rows(data, apart=has_val_file(asked.settings)))
    refuse_code_without_jail(reward, (row.sample.data_source for row in rows))
    with prints_aside():
        tried = try_out(
            reward,
            rows,
            FULL,
            has_gold=asked.settings[ANSWER] != "none",
            timeout=asked.settings["launcher.reward.timeout"],
            max_errors=asked.settings["launcher.max_reward_errors"],
        )
    own = any(not one.ours for one, _ in tried)
    diagnosis, length_note = _diagnosis(asked, data, compares_text=own)
    findings = [*merged([finding for _, each in tried for finding in each]), *diagnosis.findings]
    page = _Page(asked, [one for one, _ in tried], diagnosis, findings, [*reward.notes, *length_note])
    page.cleaned = _clean(asked, data, page.tried)
    page.seconds = time.perf_counter() - began
    print(page.as_json() if asked.own.json else page.as_text())
    return int(page.level == "refuse")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the page as one JSON object")
    parser.add_argument(
        "--clean",
        type=Path,
        metavar="OUT.parquet",
        help="write the records to train on: no duplicates, contradictions, leaks or over-long prompts, and none whose "
        "right answer a reward of ours does not pay",
    )


def _rows(data: Data, *, apart: bool) -> Iterator[Row]:
    """Every record as training would give it to the reward."""
    from reward_funcs import Sample
    from reward_funcs.rehearsal import Row

    for split, records in (("train", data.train or []), ("val", data.val)):
        behind = " of the evaluation data" if split == "val" and apart else ""
        for index, record in enumerate(records):
            extra = {"index": index, "split": split, **record.extra}
            sample = Sample(record.data_source, "", record.ground_truth, extra, prompt=record.prompt)
            yield Row(sample, f"record {record.index}{behind}")


def _diagnosis(asked: Asked, data: Data, *, compares_text: bool) -> tuple[Diagnosis, list[str]]:
    from data_prep.doctor import diagnose
    from data_prep.prompt_tokens import PromptTokens, tokenizer_file

    train, settings = data.train or [], asked.settings
    name = str(settings[TOKENIZER] or settings[MODEL])
    folder = Path(name).expanduser()
    why = "the small new model is made when training starts" if name == "scratch" else f"{name} is no folder here"
    lengths, notes = None, [f"prompts were not counted in tokens: {why} (--model FOLDER)"]
    if folder.is_dir():
        notes = [f"prompts were not counted in tokens: {folder} has no tokenizer.json"]
        if tokenizer_file(folder) is not None:
            counter = PromptTokens(folder, template=settings[TEMPLATE])
            lengths, notes = counter.counts(record.prompt for record in (*train, *data.val)), []
    found = diagnose(
        train,
        data.val,
        lengths=lengths,
        longest=settings[LONGEST],
        apart=has_val_file(settings),
        compares_text=compares_text,
    )
    return found, notes


def _clean(asked: Asked, data: Data, tried: list[Tried]) -> str:
    """Write what --clean asks for, in the file's order; what was done, "" for nothing."""
    from data_prep.convert import convert
    from data_prep.doctor import clean, diagnose

    target = asked.own.clean
    if target is None:
        return ""
    apart, settings = has_val_file(asked.settings), asked.settings
    records: list[Record] = [*(data.train or []), *(() if apart else data.val)]
    records.sort(key=lambda record: record.index)
    unpaid = {name for one in tried if one.correctness for name in (*one.low_rows, *one.broken_rows)}
    counted = _diagnosis(asked, Data(records, data.val if apart else []), compares_text=False)[0]
    found = diagnose(records, data.val if apart else [], lengths=counted.lengths, longest=settings[LONGEST])
    kept = clean(records, found, leave_out={i for i, one in enumerate(records) if f"record {one.index}" in unpaid})
    if not kept:
        raise ConfigError(f"--clean {target}: no record would be left; see the page without --clean")
    convert([_without(record, settings[SYSTEM]) for record in kept], target)
    moved = {"prompt_key": "prompt", "answer_key": "ground_truth", "source_key": "data_source"}
    back = [f"--{key} {name}" for key, name in moved.items() if settings[f"launcher.data.{key}"] not in (name, "none")]
    return f"{target}: {len(kept):,} of {len(records):,} records; train with {' '.join([f'--data {target}', *back])}"


def _without(record: Record, system: str | None) -> Record:
    """The record as it was before --system: the next command gives that again."""
    return record if system is None else replace(record, prompt=record.prompt[1:])


class _Page:
    """Everything that was found, as text or as JSON. level: of the worst finding."""

    def __init__(
        self, asked: Asked, tried: list[Tried], diagnosis: Diagnosis, findings: list[Any], notes: list[str]
    ) -> None:
        self.asked, self.tried, self.diagnosis, self.notes = asked, tried, diagnosis, notes
        self.findings = sorted(findings, key=lambda finding: list(SIGNS).index(finding.level))
        self.level = self.findings[0].level if self.findings else "note"
        self.cleaned, self.seconds = "", 0.0

    def as_text(self) -> str:
        """The page for a terminal."""
        from reward_funcs.rehearsal.page import lines

        text: list[str] = []
        for one in self.tried[:BLOCKS]:
            text += [*lines(one), ""]
        if rest := self.tried[BLOCKS:]:
            text += [*(f"{one.source}: {lines(one)[1].strip()}" for one in rest), ""]
        text += [f"prompts  {self.asked.settings['data.train_files']}"]
        text += [f"  {line}" for line in self.diagnosis.lines()] + [f"  {note}" for note in self.notes] + [""]
        for number, finding in enumerate(self.findings, 1):
            text.append(f"{number}. {SIGNS[finding.level]}: {finding.text}")
            text += [f"     {row}" for row in finding.rows]
            text += [f"     to do: {self._fix(finding)}"] if finding.fix else []
        text += [""] if self.findings else []
        text += [self.cleaned] if self.cleaned else []
        return visible("\n".join([*text, f"{self.verdict()} ({self.seconds:.1f} s)"]))

    def as_json(self) -> str:
        """The same for machines."""
        found = {
            "verdict": {"refuse": "fix first", "warn": "ready, with warnings"}.get(self.level, "ready"),
            "seconds": round(self.seconds, 3),
            "rewards": [asdict(one) for one in self.tried],
            "prompts": {key: value for key, value in asdict(self.diagnosis).items() if key != "findings"},
            "notes": self.notes,
            "clean": self.cleaned or None,
            "changes": [
                {"level": f.level, "text": f.text, "fix": self._fix(f), "rows": list(f.rows)} for f in self.findings
            ],
        }
        return json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False)

    def verdict(self) -> str:
        """One sentence."""
        count = {level: sum(finding.level == level for finding in self.findings) for level in SIGNS}
        if count["refuse"]:
            return (
                f"Verdict: not ready. Change what is marked `{SIGNS['refuse']}` first: {count['refuse']} of the above."
            )
        if count["warn"]:
            return f"Verdict: it will train, but {count['warn']} of the above should change."
        return "Verdict: ready to train."

    def _fix(self, finding: Any) -> str:
        return finding.fix.replace("{check}", self.asked.words)

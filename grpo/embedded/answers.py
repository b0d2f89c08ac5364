"""Several models answer the same prompts, and the same reward scores them: for ./train.sh eval.

One model is in memory at a time. What a prompt is answered depends on the seed, its place in its file and k alone, so
an evaluation that was stopped goes on as if nothing had happened. Leaves out numbers and files (grpo/commands/eval.py).
"""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from data_prep.record import Record
from grpo.embedded.choosing import Sampling
from grpo.embedded.interrupts import Interrupts, StopRequested
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Encoder, Prompt, as_row, hash_seed
from grpo.embedded.rollout import sample
from grpo.embedded.scoring import lengths_of, responses_text
from grpo.embedded.talk import open_reader, open_voice
from grpo.engine import EngineError, Interrupted
from grpo.metrics.live import Progress
from reward_funcs import Sample, score_batch
from reward_funcs.score import Scorer

Line = dict[str, Any]


@dataclass(frozen=True)
class Exam:
    """What is asked, and how.

    models: label -> folder or Hub id; files: name -> records; max_prompt_length: tokens, and what becomes of a longer
    prompt (`filter`, `error`, `left`, `right`); fixed_length: the longest response is what the user said, else it may
    be cut to what the models read; template, device, dtype, trust: as in training; max_rows: responses sampled side by
    side; max_errors: share of a batch's reward calls that may fail.
    """

    models: Mapping[str, str]
    files: Mapping[str, Sequence[Record]]
    sampling: Sampling
    max_prompt_length: int
    truncation: str
    fixed_length: bool
    seed: int
    template: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    trust: bool = False
    max_rows: int = 256
    max_errors: float = 0.1


@dataclass(frozen=True)
class _Part:
    """Prompts that are answered together. first: the number of the first one among those of its file."""

    data: str
    first: int
    records: tuple[int, ...]
    prompts: list[Prompt]


def answer(
    exam: Exam,
    open_scoring: Callable[[Callable[[], None]], Any],
    *,
    known: Callable[[str, str, Sequence[int]], bool],
    take: Callable[[list[Line]], None],
    progress: Progress,
) -> None:
    """Have every model answer every prompt, and hand over the scored lines of completions.jsonl as they come.

    open_scoring: the reward, given what to call while it waits; known(model, data, records): whether these lines are
    there already. Raises EngineError, DataError, RewardError, or Interrupted between two parts.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    with Interrupts("what was answered stays") as interrupts:
        sampling, parts = _prepare(exam, progress.note)
        with open_scoring(interrupts.check) as scoring:
            for note in scoring.notes:
                progress.note(note)
            try:
                for label in exam.models:
                    left = [part for part in parts[label] if not known(label, part.data, part.records)]
                    total = _prompts(parts[label])
                    progress.phase(f"{label} {exam.models[label]}", total, done=total - _prompts(left))
                    _one_model(exam, label, sampling, left, scoring, take, interrupts, progress)
                    free_memory()
            except StopRequested:
                raise Interrupted("stopped") from None


def _one_model(
    exam: Exam,
    label: str,
    sampling: Sampling,
    parts: Sequence[_Part],
    scoring: Scorer,
    take: Callable[[list[Line]], None],
    interrupts: Interrupts,
    progress: Progress,
) -> None:
    if not parts:
        return
    name = exam.models[label]
    voice = open_voice(name, template=exam.template, device=exam.device, dtype=exam.dtype, trust=exam.trust)
    rewards: list[float] = []
    for part in parts:
        interrupts.check()
        total = len(part.prompts) * sampling.n

        def on_token(done: int, total: int = total) -> None:
            interrupts.check()
            progress.working("sampling", done, total)

        lines = _answered(voice.policy, label, part, sampling, exam, scoring, on_token)
        take(lines)
        rewards += [line["reward"] for line in lines if line["reward"] is not None]
        progress.advance(len(part.prompts), reward_mean=sum(rewards) / max(1, len(rewards)))


def _prompts(parts: Sequence[_Part]) -> int:
    return sum(len(part.prompts) for part in parts)


def _answered(
    policy: Policy,
    label: str,
    part: _Part,
    sampling: Sampling,
    exam: Exam,
    scoring: Scorer,
    on_token: Callable[[int], None],
) -> list[Line]:
    """The scored lines of one part."""
    rollouts = sample(
        policy,
        [prompt.ids for prompt in part.prompts],
        sampling,
        seed=hash_seed(exam.seed, "eval", part.data, part.first),
        max_rows=exam.max_rows,
        on_token=on_token,
    )
    texts, lengths, n = responses_text(policy, rollouts), lengths_of(rollouts), sampling.n
    samples = [
        Sample(prompt.data_source, text, prompt.ground_truth, prompt.extra_info, prompt.text, length)
        for prompt, text, length in zip((part.prompts[i // n] for i in range(len(texts))), texts, lengths, strict=True)
    ]
    scores = score_batch(scoring, samples, max_errors=exam.max_errors)
    truncated = rollouts.truncated.tolist()
    return [
        {
            "model": label,
            "data": part.data,
            "record": part.records[i // n],
            "prompt": part.prompts[i // n].text,
            "response": text,
            "reward": scores.scores[i],
            "parts": scores.parts[i],
            "length": lengths[i],
            "truncated": bool(truncated[i]),
            "ground_truth": part.prompts[i // n].ground_truth,
            "data_source": part.prompts[i // n].data_source,
        }
        for i, text in enumerate(texts)
    ]


Read = dict[str, dict[str, list[Prompt | None]]]  # file -> model -> its prompts, None = too long for it


def _prepare(exam: Exam, say: Callable[[str], None]) -> tuple[Sampling, dict[str, list[_Part]]]:
    """How to sample, and each model's prompts in parts. A prompt that one model cannot read is left out for all, so
    that every number is of the same prompts."""
    read: Read = {data: {} for data in exam.files}
    limits: dict[str, tuple[int, bool]] = {}
    for label, name in exam.models.items():
        tokenizer, longest, whole = open_reader(name, trust=exam.trust)
        limits[label] = longest, whole
        encoder = Encoder(
            tokenizer,
            template=exam.template,
            max_length=exam.max_prompt_length,
            truncation=exam.truncation,
            whole=whole,
        )
        if not encoder.has_template:
            say(f"{label} has no chat template: prompts are given as plain text; --prompt_template gives another")
        for data, records in exam.files.items():
            read[data][label] = [encoder(as_row(record, index)) for index, record in enumerate(records)]
    kept: dict[str, list[int]] = {}
    for data, by_model in read.items():
        rows = zip(*by_model.values(), strict=True)
        kept[data] = [number for number, row in enumerate(rows) if all(prompt is not None for prompt in row)]
        if not kept[data]:
            raise EngineError(f"{data}: every prompt is over --max_prompt_length {exam.max_prompt_length}; raise it")
        if left_out := len(exam.files[data]) - len(kept[data]):
            say(f"{data}: left out {left_out} prompts over {exam.max_prompt_length} tokens (--max_prompt_length)")
    sampling = _fitting(exam, read, limits, say)
    step = max(1, exam.max_rows // sampling.n)
    return sampling, {label: list(_parts(read, label, kept, step)) for label in exam.models}


def _parts(read: Read, label: str, kept: Mapping[str, Sequence[int]], step: int) -> Iterator[_Part]:
    for data, numbers in kept.items():
        for first in range(0, len(numbers), step):
            chosen = tuple(numbers[first : first + step])
            prompts = [prompt for number in chosen if (prompt := read[data][label][number]) is not None]
            yield _Part(data, first, chosen, prompts)


def _fitting(
    exam: Exam,
    read: Read,
    limits: Mapping[str, tuple[int, bool]],
    say: Callable[[str], None],
) -> Sampling:
    """Responses no longer than what every model has room for behind its longest prompt."""
    most = exam.sampling.max_length
    for label, name in exam.models.items():
        prompt = max(len(one.ids) for by_model in read.values() for one in by_model[label] if one is not None)
        longest, apart = limits[label]
        room = longest if apart and prompt <= longest else longest - prompt
        if room < 1 or (exam.fixed_length and room < exam.sampling.max_length):
            raise EngineError(
                f"{name} reads at most {longest} tokens, and the longest prompt has {prompt}: lower "
                f"--max_response_length {exam.sampling.max_length} or --max_prompt_length {exam.max_prompt_length}"
            )
        most = min(most, room)
    if most < exam.sampling.max_length:
        say(f"responses have at most {most} tokens: a model reads no more behind its longest prompt")
    return dataclasses.replace(exam.sampling, max_length=most)


def free_memory() -> None:
    """Give back what a model held on an accelerator."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

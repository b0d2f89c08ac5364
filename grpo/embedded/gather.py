"""A step's responses and their scores; with dynamic sampling, until enough groups have something to teach.

Left out: what is learned from them (learn.py), and how a token is chosen (rollout.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo.algorithm import groups_with_signal, overlong_penalty
from grpo.embedded.evaluate import rows
from grpo.embedded.parallel import joined
from grpo.embedded.prompts import Prompt
from grpo.embedded.rollout import Rollouts
from grpo.embedded.scoring import lengths_of, responses_text
from grpo.embedded.session import Session
from grpo.embedded.settings import Shaping
from reward_funcs import Scores


@dataclass(frozen=True)
class Sampled:
    """Everything sampled for a step. trained: which responses are learned from, [B] of indices; all = None.

    batches: how many batches of prompts it took. reference: log-probs of the responses under the frozen model, [B, R];
    None where nothing is measured against it, or not known yet which responses are learned from.
    """

    prompts: list[Prompt]
    rollouts: Rollouts
    texts: list[str]
    scores: Scores
    reference: torch.Tensor | None = None
    trained: torch.Tensor | None = None
    batches: int = 1

    def lines(self) -> list[dict[str, Any]]:
        """For completions.jsonl: those that nothing is learned from, too."""
        return rows(self.prompts, self.texts, self.scores, self.rollouts, "train")


def gather(session: Session, step: int, prompts: list[Prompt]) -> Sampled:
    """Sample and score a batch; with algorithm.filter_groups more batches, until as many groups have a signal.

    When the limit is reached, the step goes on with the groups it has; where no group at all has a signal, with the
    last batch as it is.
    """
    found = [_sample(session, step, prompts, 0)]
    if session.settings.refill is None:
        return found[0]
    kept = [_with_signal(session, found[0])]
    while sum(map(len, kept)) < len(prompts) and len(found) < session.most_batches():
        more = session.draws.next()
        if more is None:
            break
        found.append(_sample(session, step, more, len(found)))
        kept.append(_with_signal(session, found[-1]))
    starts = [sum(len(part.prompts) for part in found[:i]) for i in range(len(found))]
    groups = torch.cat([start + mine for start, mine in zip(starts, kept, strict=True)])[: len(prompts)]
    if not len(groups):
        groups = starts[-1] + torch.arange(len(found[-1].prompts))
    n = session.settings.sampling.n
    trained = (groups[:, None] * n + torch.arange(n)).flatten().to(session.policy.device)
    return Sampled(
        prompts=[prompt for part in found for prompt in part.prompts],
        rollouts=joined([part.rollouts for part in found], pad_id=session.policy.pad_id),
        texts=[text for part in found for text in part.texts],
        scores=_joined_scores([part.scores for part in found]),
        trained=trained,
        batches=len(found),
    )


def shaped(scores: Sequence[float | None], lengths: torch.Tensor, shaping: Shaping) -> list[float | None]:
    """Each reward within its limit and less what its length costs; None stays None. lengths: [B], in tokens."""
    c = float("inf") if shaping.clip is None else shaping.clip
    penalties = overlong_penalty(lengths, **shaping.overlong).tolist() if shaping.overlong else [0.0] * len(scores)
    return [
        None if score is None else max(-c, min(c, score)) + penalty
        for score, penalty in zip(scores, penalties, strict=True)
    ]


def _sample(session: Session, step: int, prompts: list[Prompt], number: int) -> Sampled:
    with session.scoring(prompts) as scoring:  # while sampling goes on, and while the reference is asked
        rollouts = session.sample(step, prompts, number, scoring.ended)
        texts = responses_text(session.policy, rollouts)
        scoring.begin(texts, lengths_of(rollouts))
        reference = None if session.settings.refill else session.reference_log_probs(rollouts)
        return Sampled(prompts, rollouts, texts, scoring.scores(), reference)


def _with_signal(session: Session, sampled: Sampled) -> torch.Tensor:
    """The groups (indices into the prompts) whose responses differ in the metric; failed rewards do not count."""
    refill, scores, n = session.settings.refill, sampled.scores, sampled.rollouts.n
    assert refill is not None
    if refill.metric == "reward":
        given = shaped(scores.scores, sampled.rollouts.response_mask.sum(1), session.settings.shaping)
    else:
        given = [parts.get(refill.metric) for parts in scores.parts]
    there = torch.tensor([value is not None for value in given])
    values = torch.tensor([value for value in given if value is not None])
    if not len(values):
        return torch.zeros(0, dtype=torch.long)
    uid = torch.arange(len(given))[there] // n
    return uid[groups_with_signal(values, uid)].unique()


def _joined_scores(parts: Sequence[Scores]) -> Scores:
    return Scores(
        [score for part in parts for score in part.scores],
        [mine for part in parts for mine in part.parts],
        sum(part.errors for part in parts),
        next((part.first_error for part in parts if part.first_error), None),
    )

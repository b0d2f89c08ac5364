"""From right and wrong responses to pass@k, and to how many groups of n responses will differ in training.

Pure numbers: a prompt is (c, m), c right of m responses. A group whose responses all score the same has no advantage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

SIZES = (3, 5, 8, 16)  # rollout_n that are compared (S2-21: 3 quick, 5 standard, 8 high quality, 10 and more large)
WORTH = 0.1  # more groups that have to differ for the next size to be worth its time
Counts = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Forecast:
    """equal: n -> expected share of equal groups. at_most: n -> the same by p^n + (1-p)^n, never too low on average.

    Where a prompt has fewer than n responses, `equal` takes its p^n + (1-p)^n, too. never, always: share of prompts
    with no right response, and with no wrong one. advised: rollout_n. fewest: responses that a prompt has.
    """

    prompts: int
    equal: dict[int, float]
    at_most: dict[int, float]
    never: float
    always: float
    advised: int
    fewest: int


def pass_at_k(c: int, m: int, k: int) -> float:
    """The chance that one of k responses is right, by c right of m: 1 - C(m-c, k) / C(m, k).

    Unbiased (Chen et al. 2021, section 2.1). m >= k.
    """
    return 1.0 - math.comb(m - c, k) / math.comb(m, k)


def mean_pass_at_k(counts: Counts, k: int) -> float | None:
    """pass@k over the prompts that have k responses or more; None when there is none."""
    values = [pass_at_k(c, m, k) for c, m in counts if m >= k]
    return sum(values) / len(values) if values else None


def plain_equal(p: float, n: int) -> float:
    """The chance that n responses are all right or all wrong, when each is right with chance p."""
    return p**n + (1 - p) ** n


def equal_share(c: int, m: int, n: int) -> float:
    """The same from c right of m responses: the share of groups of n among these m that are equal, which is unbiased.

    With m < n there is no such group, and p = c/m is put into p^n + (1-p)^n; that is convex in p, so it is too high.
    """
    if m < n:
        return plain_equal(c / m, n)
    return (math.comb(c, n) + math.comb(m - c, n)) / math.comb(m, n)


def forecast(counts: Counts, sizes: Sequence[int] = SIZES) -> Forecast | None:
    """What groups of each size would be worth; None without a prompt that has two responses."""
    several = [(c, m) for c, m in counts if m > 1]
    if not several:
        return None
    prompts = len(several)
    equal = {n: sum(equal_share(c, m, n) for c, m in several) / prompts for n in sizes}
    at_most = {n: sum(plain_equal(c / m, n) for c, m in several) / prompts for n in sizes}
    return Forecast(
        prompts,
        equal,
        at_most,
        never=sum(c == 0 for c, _ in several) / prompts,
        always=sum(c == m for c, m in several) / prompts,
        advised=_advised(equal, sizes),
        fewest=min(m for _, m in several),
    )


def _advised(equal: dict[int, float], sizes: Sequence[int]) -> int:
    """The smallest size after which a larger one adds few groups that differ."""
    for size, larger in itertools.pairwise(sizes):
        if equal[size] - equal[larger] < WORTH:
            return size
    return sizes[-1]

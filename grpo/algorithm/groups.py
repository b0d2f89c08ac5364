"""What the responses to one prompt have in common: mean, deviation, and whether there is anything to learn."""

from __future__ import annotations

from torch import Tensor


def statistics_of(rewards: Tensor, uid: Tensor, *, biased: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which of the G groups each response is in [B]; size, mean and standard deviation of every group [G].

    biased: divide the squares by the group's size, not by size - 1. The deviation of a group of one is 0.
    """
    _, index, size = uid.unique(return_inverse=True, return_counts=True)
    zeros = rewards.new_zeros(len(size))
    # Measured from the group's lowest reward, equal rewards give a deviation of exactly 0. Around the plain mean their
    # rounding error (7e-9 for three times 0.1) would meet the 1e-6 in the denominator and become an advantage of 0.007.
    lowest = zeros.scatter_reduce(0, index, rewards, "amin", include_self=False)
    above = rewards - lowest[index]
    mean_above = zeros.index_add(0, index, above) / size
    squares = zeros.index_add(0, index, (above - mean_above[index]).square())
    divisor = size if biased else (size - 1).clamp(min=1)
    return index, size, lowest + mean_above, (squares / divisor).sqrt()


def zero_std_fraction(rewards: Tensor, uid: Tensor) -> Tensor:
    """Share of groups whose rewards are all equal, so that they teach nothing. rewards, uid: [B]; a scalar in 0..1.

    A group of one is counted: alone, it has nothing to be compared with.
    """
    return (statistics_of(rewards, uid)[3] == 0).to(rewards.dtype).mean()


def groups_with_signal(values: Tensor, uid: Tensor) -> Tensor:
    """Which responses are in a group whose values differ: what dynamic sampling keeps. values, uid: [B]; [B] bool.

    DAPO (arXiv 2503.14476), equation 11; verl's filter_groups. A group of one has no signal.
    """
    index, _, _, std = statistics_of(values, uid)
    return (std > 0)[index]


def group_std(rewards: Tensor, uid: Tensor) -> Tensor:
    """Standard deviation within a group, averaged over the groups (`reward_std`). rewards, uid: [B]; a scalar.

    Unbiased, as the advantage uses it; a group of one counts as 0.
    """
    return statistics_of(rewards, uid)[3].mean()

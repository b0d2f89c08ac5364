"""What ./train.sh eval measures: from scored responses to numbers with intervals, for each data file and source.

A response is a line of its completions.jsonl. Leaves out showing them (eval_table.py, eval_page.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo.metrics.intervals import Measured, Sums, measured
from reward_funcs.majority import answers, majority
from reward_funcs.pass_rates import pass_at_k

ALL = "all"  # the group of a file's prompts of every data_source
PART = "reward/"
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """The prompts of a file, or those of one data_source in it. by_model: label -> number -> Measured;
    differences: label of a later model -> that model's numbers less the first one's."""

    data: str
    data_source: str
    prompts: int
    by_model: dict[str, dict[str, Measured]]
    differences: dict[str, dict[str, Measured]]

    @property
    def names(self) -> list[str]:
        """The numbers, in the order in which they are shown."""
        return list(next(iter(self.by_model.values())))

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        return asdict(self)


def groups_of(lines: Iterable[Line], labels: Sequence[str], *, k: int, pass_at: float, seed: int) -> list[Group]:
    """Numbers for each file as a whole and, where it has several, for each data_source.

    labels: of the models, all of which have answered the same prompts k times. pass_at: from which reward on a
    response is right.
    """
    asked: dict[str, dict[int, dict[str, list[Line]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for line in lines:
        asked[line["data"]][line["record"]][line["model"]].append(line)
    found = []
    for data, records in asked.items():
        prompts = [records[number] for number in sorted(records)]
        sources = sorted({prompt[labels[0]][0]["data_source"] for prompt in prompts})
        kinds = [ALL, *sources] if len(sources) > 1 else sources
        for kind in kinds:
            mine = [prompt for prompt in prompts if kind == ALL or prompt[labels[0]][0]["data_source"] == kind]
            found.append(_group(data, kind, mine, labels, k=k, pass_at=pass_at, seed=seed))
    return found


def _group(
    data: str,
    source: str,
    prompts: Sequence[Mapping[str, list[Line]]],
    labels: Sequence[str],
    *,
    k: int,
    pass_at: float,
    seed: int,
) -> Group:
    models = [sums_of([prompt[label] for prompt in prompts], k=k, pass_at=pass_at) for label in labels]
    numbers = measured(models, seed=seed)
    differences = dict(zip(labels[1:], numbers[len(labels) :], strict=True))
    return Group(data, source, len(prompts), dict(zip(labels, numbers, strict=False)), differences)


def sums_of(prompts: Sequence[Sequence[Line]], *, k: int, pass_at: float) -> Sums:
    """Number -> (sum, count) of each prompt, given its responses of one model.

    A response whose reward call failed counts for length and truncation alone.
    """
    parts = sorted({name for lines in prompts for line in lines for name in line["parts"]})
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for lines in prompts:
        scored = [line for line in lines if line["reward"] is not None]
        right = sum(line["reward"] >= pass_at for line in scored)
        found["accuracy"].append((right, len(scored)))
        for size in sizes(k):
            found[f"pass@{size}"].append((pass_at_k(right, len(scored), size), 1) if len(scored) >= size else (0, 0))
        if k > 2:
            found[f"maj@{k}"].append(_by_majority(lines, pass_at))
        found["reward"].append((sum(line["reward"] for line in scored), len(scored)))
        for name in parts:
            values = [line["parts"][name] for line in scored if name in line["parts"]]
            found[f"{PART}{name}"].append((sum(values), len(values)))
        found["length"].append((sum(line["length"] for line in lines), len(lines)))
        found["truncated"].append((sum(line["truncated"] for line in lines), len(lines)))
        found["failed"].append((len(lines) - len(scored), len(lines)))
    if not any(top for top, _ in found["failed"]):
        del found["failed"]
    return found


def sizes(k: int) -> list[int]:
    """The k of pass@k for k responses: powers of two, and k itself; pass@1 is the accuracy."""
    return sorted({*(2**power for power in range(1, 10) if 2**power <= k), k} - {1})


def _by_majority(lines: Sequence[Line], pass_at: float) -> tuple[float, float]:
    """(1 when the answer that most responses give is right, 1); (0, 0) where answers cannot be compared."""
    given = answers(lines[0]["data_source"], [line["response"] for line in lines])
    if given is None:
        return 0, 0
    rewards = [lines[number]["reward"] for number in majority(lines[0]["data_source"], given)]
    known = [reward for reward in rewards if reward is not None]
    return float(bool(known) and known[0] >= pass_at), 1

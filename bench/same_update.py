"""Does one update do the same in our engine and in TRL, from equal weights, prompts, responses and rewards?

    .venv/bin/python bench/same_update.py                       # the shapes small and ragged
    .venv/bin/python bench/same_update.py --shapes half-b --record     # adds it to bench/results/compare.*

Both train one step as users start them, but that the responses are given: random tokens, drawn from the prompt and the
number in the group. Rewards are computed from them by each side. The advantage is not divided by the group's standard
deviation, to which TRL adds 1e-4 and verl and we 1e-6. Compared are the changes of the weights.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shapes import SHAPES, write

BENCH = Path(__file__).resolve().parent


def given_responses(prompt: Sequence[int], shape: dict[str, Any], eos: int) -> list[list[int]]:
    """The responses to a prompt, as tokens; those of ragged lengths end."""
    draw = random.Random(str(list(prompt)))
    found = []
    for _ in range(shape["n"]):
        length = draw.randint(shape["shortest"] or shape["tokens"], shape["tokens"])
        ids = [draw.randint(3, 255) for _ in range(length)]
        found.append(ids if length == shape["tokens"] else [*ids[:-1], eos])
    return found


def compare(name: str, threads: int) -> dict[str, float]:
    """cosine of the changes of all weights; difference: the norm of their difference, as a share of TRL's change."""
    import sides

    shape = SHAPES[name]
    with tempfile.TemporaryDirectory(prefix="grpo-update-") as place:
        folder = Path(place)
        write(folder, shape, steps=1, seed=1)
        job = sides.Job(folder, shape, 1, threads, 1, (), "float32")
        outs = []
        for side, run in (("ours", sides.our_update), ("trl", sides.trl_update)):
            scratch = folder / side
            scratch.mkdir()
            outs.append(run(job, scratch))
        return _compared(folder / "model", *outs)


def _compared(start: Path, ours: Path, theirs: Path) -> dict[str, float]:
    import torch
    from safetensors.torch import load_file

    before, mine, other = (load_file(folder / "model.safetensors") for folder in (start, ours, theirs))
    assert before.keys() == mine.keys() == other.keys()
    sums = torch.zeros(4, dtype=torch.float64)
    for key, weight in before.items():
        a, b = (side[key].double() - weight.double() for side in (mine, other))
        sums += torch.stack([(a * b).sum(), (a * a).sum(), (b * b).sum(), ((a - b) ** 2).sum()])
    inner, own, theirs_, apart = sums.tolist()
    return {"cosine": inner / (own * theirs_) ** 0.5, "difference": (apart / theirs_) ** 0.5}


def ours(spec: dict[str, Any]) -> None:
    """In a process of its own: a run of the product whose responses are given."""
    import torch

    sys.path.insert(0, str(BENCH.parent))
    from grpo.__main__ import main as run
    from grpo.embedded import rollout, session

    def given(_world, policy, prompts, sampling, **_: Any) -> rollout.Rollouts:
        ids, mask = rollout._left_pad(prompts, policy)
        responses = [one for prompt in prompts for one in given_responses(prompt, spec["shape"], policy.stop_ids[0])]
        lengths = torch.tensor([len(one) for one in responses])
        response_mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        response_ids = torch.full_like(response_mask, policy.pad_id)
        response_ids[response_mask.bool()] = torch.tensor([token for one in responses for token in one])
        with torch.no_grad():
            log_probs, _ = policy.log_probs(ids, mask, response_ids, response_mask, temperature=1.0)
        uid = torch.arange(len(prompts)).repeat_interleave(sampling.n)
        cut = torch.tensor([one[-1] not in policy.stop_ids for one in responses])
        return rollout.Rollouts(ids, mask, response_ids, response_mask, log_probs * response_mask, uid, cut)

    session.sample_together = given
    sys.exit(run(spec["words"]))


def trl(spec: dict[str, Any]) -> None:
    """In TRL's environment: a run of its trainer whose responses are given."""
    import peer_trl

    class Given(peer_trl.GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **_: Any):  # noqa: ANN202 (as TRL wants it)
            eos, seen, found = int(self.processing_class.eos_token_id), {}, []
            for prompt in prompt_ids:
                number = seen[tuple(prompt)] = seen.get(tuple(prompt), -1) + 1
                found.append(given_responses(prompt, spec["shape"], eos)[number])
            return found, None

    peer_trl.GRPOTrainer = Given
    peer_trl.main(spec)


def main() -> None:
    """Compare, print, and write it down when asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="small,ragged", help=", ".join(SHAPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="add it to bench/results/compare.*")
    given = parser.parse_args()
    record = BENCH / "results" / "compare.json"
    for name in given.shapes.split(","):
        found = compare(name, given.threads)
        print(f"{name}: cosine {found['cosine']:.7f}, difference {found['difference']:.1e} of TRL's change", flush=True)
        if given.record:
            import compare_table

            whole = json.loads(record.read_text(encoding="utf-8"))
            whole["shapes"][name]["update"] = found
            record.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
            compare_table.write(record)


if __name__ == "__main__":
    if sys.argv[1:2] in (["--ours"], ["--trl"]):
        {"--ours": ours, "--trl": trl}[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    else:
        main()

"""The command that is shown when a run has ended."""

from __future__ import annotations

import pytest

from grpo import final, flags, launch
from grpo.resolve import resolve


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rollout_n", "4"], "./train.sh --config out/config.yaml --rollout_n 8 --output_dir out_n8"),
        (["--rollout_n", "8", "--seed", "3"], "./train.sh --config out/config.yaml --seed 4 --output_dir out_seed4"),
        (["--debug"], "the same command without --debug"),
    ],
)
def test_the_command_to_try_next(in_folder, words: list[str], said: str):
    """S2-21"""
    made = resolve(flags.parse(["--data", "p.json", "--model", "scratch", "--output_dir", "out", *words]), {})
    assert final.next_command(launch.make_run(made, made.settings())) == f"next      {said}"

"""`./train.sh plan --model X --n_gpus N`: bytes of each phase, what saves memory, how long a step takes.

Takes the words of a training command, trains nothing. The arithmetic is grpo/memory's, the probe the embedded engine's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, NoReturn

from grpo import batches, flags, launch, repair
from grpo.config import ConfigError, Settings
from grpo.memory import planning
from grpo.memory.machine import read_bytes, read_card
from grpo.memory.planning import Asked, Planned
from grpo.memory.seconds import Estimate, Line, Probed, embedded_seconds, verl_seconds
from grpo.memory.shape import config_of
from grpo.resolve import resolve

NAME = "./train.sh plan"


def main(argv: list[str]) -> int:
    """Run the command. Raises the rooms' errors."""
    own, rest = _parser().parse_known_args(argv)
    for name in ("mean_prompt", "mean_response"):
        if getattr(own, name) is not None and not 0 < getattr(own, name) < float("inf"):
            raise ConfigError(f"--{name} {getattr(own, name):g}: a number of tokens over 0")
    asked = Asked(
        memory=None if own.memory is None else read_bytes(own.memory),
        gpu=None if own.gpu is None else read_card(own.gpu),
        mean_prompt=own.mean_prompt,
        mean_response=own.mean_response,
    )
    line = flags.parse(rest)
    resolved = resolve(line, os.environ)
    settings = resolved.settings()
    _expected(own, settings)
    engine, why = launch.choose_engine(settings)
    launch.suit(resolved, engine)
    data = None if launch.on_hub(settings) else launch.read_data(settings)
    if data is not None:
        repair.fitted(resolved, data, engine)
    settings = repair.accepted(resolved, engine, here=False)
    devices = batches.devices_of(settings, engine.name)
    numbers = batches.arithmetic(settings, data.prompts if data else None, devices=devices)
    planned = planning.plan(settings, engine.name, asked, numbers.steps)
    unprobed = "--no_probe" if own.no_probe else "--dry_run" if line.dry_run is not None else ""
    if asked.gpu and not unprobed:
        unprobed = f"--gpu {asked.gpu}: the time comes from a probe of this machine, where that card is not"
    estimate, why_not = None, f"not probed ({unprobed})"
    if not unprobed or engine.name == "verl":
        if engine.name != "verl":
            print("trying this machine, for the time of a step (--no_probe leaves it out) ...", file=sys.stderr)
        planned, estimate, why_not = _timed(planned, settings)
    if own.json:
        print(json.dumps(planning.as_json(planned, estimate), ensure_ascii=False, indent=2))
        return 0
    for note in [*resolved.notes, why]:
        print(note)
    if engine.name != "verl" and planned.job.device == "cpu":
        print(f"{planning.ELSEWHERE} --gpu H100, or --gpu H100 for one")
    print("\n".join(["", *planning.long(planned, estimate, why_not)]))
    return 0


def _expected(own: argparse.Namespace, settings: Settings) -> None:
    """Raise ConfigError where more tokens are expected than there may be."""
    for what in ("prompt", "response"):
        name, key = f"mean_{what}", f"data.max_{what}_length"
        if getattr(own, name) is not None and getattr(own, name) > settings[key]:
            raise ConfigError(
                f"--{name} {getattr(own, name):g} is more than {key}={settings[key]} ({settings.origins[key]}) allows; "
                f"give at most {settings[key]}, or raise --max_{what}_length"
            )


def _timed(planned: Planned, settings: Any) -> tuple[Planned, Estimate | None, str]:
    """(the plan, the time, why it is not known)."""
    job = planned.job
    if job.engine == "verl":
        if planned.card is None:
            return planned, None, "name the card with --gpu H100 for an estimate from its peak numbers"
        return planned, verl_seconds(job, planned.card), ""
    if job.shape.encoder_layers:
        return planned, None, "models with encoder and decoder are not probed"
    from grpo.embedded.probe import Sizes, probe

    shape = job.shape
    sizes = Sizes(
        prompt=max(1, round(job.mean_prompt)),
        response=max(2, round(job.mean_response)),
        lines=min(max(1, job.rows // job.n), job.prompts) * job.n,
        n=job.n,
        layers=shape.layers,
        in_layer=shape.used_in_layers // shape.layers,
        vocabulary=shape.vocabulary,
        hidden=shape.hidden,
    )
    found = probe(settings.config(), config_of(planned.model, settings), sizes)
    planned = planning.with_precision(planned, bfloat16=found.pop("bfloat16"))
    numbers: dict[str, Any] = {
        name: Line(*value) if isinstance(value, tuple) else value for name, value in found.items()
    }
    probed = Probed(**numbers)
    return planned, embedded_seconds(planned.job, probed), ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="How much memory each phase of a run takes, what saves memory, and how long a step takes.",
        epilog="All other words are those of a training command: --model, --n_gpus, --engine, key=value ...; "
        "./train.sh --help lists them.",
        allow_abbrev=False,
    )
    parser.error = _refuse  # type: ignore[method-assign]
    parser.add_argument("--memory", metavar="80GB", help="of each GPU, or of this machine [what it has]")
    parser.add_argument("--gpu", metavar="H100", help="a card that is not in this machine: its memory and peak numbers")
    parser.add_argument("--mean_prompt", type=float, metavar="TOKENS", help="for the time [the longest allowed]")
    parser.add_argument("--mean_response", type=float, metavar="TOKENS", help="for the time [the longest allowed]")
    parser.add_argument("--no_probe", action="store_true", help="do not run the short work that tells the time")
    parser.add_argument("--json", action="store_true", help="the plan as one JSON object; bytes and seconds")
    return parser


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{NAME}: {message}; see {NAME} --help")

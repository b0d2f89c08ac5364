"""`python -m grpo`, which train.sh calls: help, sub-commands, dry run, training. Each part's work is done in its room.

The only place that catches the rooms' errors: one line on standard error for each problem, exit code 2.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grpo import flags, help

if TYPE_CHECKING:  # each is imported where it is needed, so that --help waits for none of them
    from grpo.engine import Engine
    from grpo.resolve import Resolved

STOPPED = 130  # as the shell counts a SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Chinese characters gets them as \\u....
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of `./train.sh --help | head` has seen enough; Python must not complain while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    if words and words[0] in flags.COMMANDS:
        command = importlib.import_module(f"grpo.commands.{words[0].replace('-', '_')}")
        return _answering(lambda: command.main(words[1:]))
    line = flags.parse(words)
    if line.help is not None:
        help.show(line.help)
        return 0
    if "list" in line.recipes:
        return _answering(_list_recipes)
    return _answering(lambda: _launch(line))


def _answering(work: Callable[[], int]) -> int:
    """The exit code of `work()`, with the rooms' errors told in one line each."""
    from data_prep.errors import DataError
    from grpo.config import ConfigError
    from grpo.engine import EngineError
    from reward_funcs.errors import RewardError

    try:
        return work()
    except (ConfigError, DataError, RewardError, EngineError) as problem:
        sys.stdout.flush()
        for text in str(problem).splitlines():
            print(f"error: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped", file=sys.stderr)
        return STOPPED


def _list_recipes() -> int:
    from grpo.config import recipe_files, recipe_line

    files = recipe_files()
    wide = max(len(file.stem) for file in files)
    for file in files:
        print(f"{file.stem:<{wide}}  {recipe_line(file)}")
    return 0


def _launch(line: flags.CommandLine) -> int:
    from grpo import final, launch, plan, repair
    from grpo.resolve import checked, resolve

    resolved = resolve(line, os.environ)
    settings = repair.repaired(resolved, lambda: checked(resolved))
    engine, why = launch.choose_engine(settings)
    launch.suit(resolved, engine)
    if line.dry_run is not None:
        return _dry_run(line.dry_run, resolved, engine, why)
    settings = repair.accepted(resolved, engine)
    data = launch.read_data(settings)
    launch.check_rewards(settings, data)
    reward, odd = launch.rehearse_reward(settings, data)
    settings = repair.fitted(resolved, data, engine, say=print)
    unused = plan.unused_note(settings, engine.name, engine.no_effect(launch.make_run(resolved, settings)))
    for note in [*resolved.notes, *odd, why, *unused]:
        print(note, flush=True)
    result = launch.train(resolved, settings, engine, data, reward, say=print)
    final.show(result, launch.make_run(resolved, settings))
    return 0


def _dry_run(mode: str, resolved: Resolved, engine: Engine, why: str) -> int:
    """Say what would happen; reads the data, but no network and no torch. For verl it leaves scripts, else nothing."""
    from grpo import batches, final, launch, plan, repair
    from grpo.engine import reward_arguments
    from grpo.memory import planning
    from reward_funcs import build_reward

    settings = repair.accepted(resolved, engine, here=False)  # before its data is looked at, as in training
    if settings[launch.REWARD] is None:  # a file is the user's program: training runs it, and so does check
        build_reward(**reward_arguments(settings.config()))
    data = None if launch.on_hub(settings) else launch.read_data(settings)
    if data is not None:
        launch.check_rewards(settings, data)
        settings = repair.fitted(resolved, data, engine)
    run = launch.make_run(resolved, settings)
    if mode == "json":
        print(plan.to_json(settings, engine=engine.name, command=engine.plan(run), decided=engine.decided(run)))
        return 0
    for note in [*resolved.notes, why]:
        print(note)
    print()
    devices = batches.devices_of(settings, engine.name)
    numbers = batches.arithmetic(settings, data.prompts if data else None, devices=devices)
    print(
        plan.render(
            settings,
            engine=engine.name,
            numbers=numbers,
            no_effect=engine.no_effect(run),
            decided=engine.decided(run),
            command=engine.plan(run),
            memory=planning.dry_run_lines(settings, engine.name),
            full=mode == "full",
        )
    )
    if written := launch.leave_scripts(resolved, settings, engine, data):
        print("\nwrote " + " ".join(map(final.near, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`./train.sh chat --model FOLDER [--base MODEL]`: talk to what was trained, beside the model it was before.

A conversation on standard input, or one answer with --prompt. Leaves out the models (grpo/embedded/talk.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from grpo.engine import EngineError
from grpo.start_from import weights_in

if TYPE_CHECKING:
    from grpo.embedded.engine import Talk

_NAME = "./train.sh chat"
NEW, HELP = "/new", "Ctrl-D ends, /new starts a new conversation"


def main(argv: list[str]) -> int:
    """Run the command. Raises EngineError, ConfigError or DataError for what cannot be opened or asked."""
    from grpo.embedded.engine import EmbeddedEngine

    given = _arguments(argv)
    models = [str(weights_in(name, f"--{flag} {name}")) for flag, name in _models(given)]
    talk = EmbeddedEngine().talk(models, template=given.prompt_template, device=given.device, dtype=given.dtype)
    system = [{"role": "system", "content": _system(given.system)}] if given.system else []
    if given.prompt is not None:
        _answers(talk, given, [[*system, {"role": "user", "content": given.prompt}] for _ in models])
        return 0
    _converse(talk, given, system)
    return 0


def _models(given: argparse.Namespace) -> list[tuple[str, str]]:
    return [("model", given.model)] + ([("base", given.base)] if given.base else [])


def _converse(talk: Talk, given: argparse.Namespace, system: list[dict[str, str]]) -> None:
    """Line by line, until the input ends; each model goes on from its own answers."""
    on_terminal = sys.stdin.isatty()
    if on_terminal:
        print(HELP)
    turns = [list(system) for _ in talk.voices]
    while True:
        try:
            line = input("> " if on_terminal else "").strip()
        except EOFError:
            return
        if line == NEW:
            turns = [list(system) for _ in talk.voices]
        elif line:
            for turn in turns:
                turn.append({"role": "user", "content": line})
            try:
                _answers(talk, given, turns)
            except EngineError as error:
                print(f"{error}; {NEW} starts again", file=sys.stderr)
                turns = [list(system) for _ in talk.voices]


def _answers(talk: Talk, given: argparse.Namespace, turns: list[list[dict[str, str]]]) -> None:
    """Print what each model says, and add it to its conversation."""
    for number, (voice, turn) in enumerate(zip(talk.voices, turns, strict=True)):
        text = talk.answer(
            number, turn, temperature=given.temperature, most=given.max_response_length, seed=given.seed + len(turn)
        )
        turn.append({"role": "assistant", "content": text})
        print(f"[{voice.name}]\n{text}" if len(talk.voices) > 1 else text, flush=True)


def _system(text: str) -> str:
    """The system prompt: as given, or the text of the file that it names."""
    path = Path(text)
    named = len(text) < 256 and "\n" not in text and path.is_file()
    return path.read_text(encoding="utf-8").rstrip("\n") if named else text


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=_NAME, description="Talk to what was trained, beside the model it was before.", allow_abbrev=False
    )
    parser.error = _refuse
    folder = os.path.join(".", os.environ.get("OUTPUT_DIR", "").strip() or "outputs")  # never taken for a Hub id
    parser.add_argument(
        "--model", default=folder, metavar="PATH", help=f"a run's folder, checkpoint, model or adapter [{folder}]"
    )
    parser.add_argument("--base", metavar="PATH", help="another model that answers the same")
    parser.add_argument("--prompt", metavar="TEXT", help="one answer, instead of a conversation")
    parser.add_argument("--system", metavar="TEXT|FILE", help="system prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="[0] the likeliest answer; 1 = as in training")
    parser.add_argument("--max_response_length", type=int, default=512, help="[512] tokens")
    parser.add_argument("--prompt_template", metavar="none|plain|chat|JINJA", help="as in training")
    parser.add_argument("--seed", type=int, default=42, help="[42]")
    parser.add_argument("--device", default="auto", help="[auto] cpu | cuda | mps")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="[auto]")
    given = parser.parse_args(argv)
    if given.temperature < 0 or given.max_response_length < 1:
        parser.error("--temperature is 0 or more, --max_response_length at least 1")
    return given


def _refuse(message: str) -> NoReturn:
    raise EngineError(f"{_NAME}: {message}; see {_NAME} --help")

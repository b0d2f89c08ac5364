"""`./train.sh serve-reward`: a reward behind HTTP on this machine, for `--reward server:URL` and for PaddleNLP.

Leaves out the protocol (reward_funcs/reward_server.py).
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
from typing import NoReturn

from reward_funcs import RewardError, build_reward
from reward_funcs.code_ready import refuse_code_without_jail
from reward_funcs.scoring import Scoring
from reward_funcs.server_client import TOKEN

PORT = 8731  # upstream's
_LOCAL_NAMES = ("localhost",)


def main(argv: list[str]) -> int:
    """Serve until Ctrl-C. Raises RewardError for wrong arguments, an unknown reward, or a port in use."""
    given = _arguments(argv)
    token = os.environ.get(TOKEN, "").strip()
    if not _is_loopback(given.host) and not token:
        raise RewardError(
            f"--host {given.host} lets other machines in: set a token first, export {TOKEN}=$(openssl rand -hex 16), "
            "here and where the client runs"
        )
    try:
        import uvicorn

        from reward_funcs.reward_server import make_app
    except ModuleNotFoundError as error:
        raise RewardError(f"serve-reward needs {error.name}: pip install starlette uvicorn") from None
    reward = build_reward(
        names=given.reward,
        weights=[_number(text) for text in given.reward_weights.split(",") if text.strip()],
        plugins=given.external_plugins,
        file=given.reward_func,
        max_response_length=given.max_response_length,
        unsafe_code_exec=given.unsafe_code_exec,
    )
    refuse_code_without_jail(reward, [given.data_source])
    with (
        _socket(given.host, given.port) as listening,
        Scoring(reward, workers=given.workers, timeout=given.reward_timeout) as scoring,
    ):
        host, port = listening.getsockname()[:2]
        for note in [*reward.notes, *scoring.notes]:
            print(note)
        print(f"{reward.place} on http://{host}:{port}, {'with' if token else 'without'} a token; Ctrl-C ends it")
        print(f"train with it: ./train.sh --data prompts.json --reward server:http://{host}:{port}", flush=True)
        app = make_app(scoring, data_source=given.data_source, token=token)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        server.run(sockets=[listening])
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./train.sh serve-reward", description="A reward behind HTTP, by PaddleNLP's protocol.", allow_abbrev=False
    )
    parser.error = _refuse
    parser.add_argument("--port", type=int, default=PORT, help=f"[{PORT}]; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="[127.0.0.1]; any other one needs a token")
    parser.add_argument("--reward", default="", help="names and weights as for training; without: the shipped reward")
    parser.add_argument("--reward_weights", default="", help="one number for each name")
    parser.add_argument("--reward_func", metavar="FILE[:NAME]", help="your own")
    parser.add_argument("--external_plugins", action="append", default=[], metavar="FILE", help="registers names")
    parser.add_argument("--data_source", default="math_reasoning", help="[math_reasoning] of questions without one")
    parser.add_argument("--max_response_length", type=int, default=1024, help="[1024] tokens, for rewards of length")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that score")
    parser.add_argument(
        "--unsafe_code_exec", action="store_true", help="run model-written code without a sandbox where none works"
    )
    parser.add_argument("--reward_timeout", type=float, default=60.0, help="[60] seconds for one call")
    return parser.parse_args(argv)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RewardError(f"--reward_weights: {text!r} is no number") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL_NAMES


def _socket(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise RewardError(f"{host}:{port} cannot be listened on ({error}); --port names another") from None


def _refuse(message: str) -> NoReturn:
    raise RewardError(f"./train.sh serve-reward: {message}; see ./train.sh serve-reward --help")

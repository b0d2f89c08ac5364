"""One reward call in one of verl's reward workers: decode, score with the same code as the embedded engine, write down.

verl logs no parts of a reward while it trains, counts no failures and drops a response whose reward raised with a line
in a worker's log. So each worker appends every call to a file of its own, as one JSON object a line:

    key           "UID_SESSION", as in verl's dumps; null where the reward manager is not one of reward_manager.py's
    step, split   of verl's trainer (null as above); "train" or "val"
    index         of the record in its file
    data_source
    score, parts  score is null when the call failed
    length        tokens of the response; null as above
    truncated     whether it reached the limit before it ended; null as above
    error, traceback, prompt, response, ground_truth   only when the call failed; traceback of a worker's first alone
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reward_funcs import RewardError, Sample, Score, build_reward
from reward_funcs.score import attempt, last_line, record_name, shown_traceback
from reward_funcs.scoring import Scoring

TIMEOUT = 60.0  # seconds for a call, where nobody says
RESPONSE = "_response"  # the entry of extra_info in which reward_manager.py says which response this is
# verl writes a reward's parts beside these columns of its dump, and would write over them.
_COLUMNS_OF_THE_DUMP = frozenset({"input", "output", "gts", "score", "step", "reward", "uid"})

_lock = threading.Lock()
_rewards: dict[str, Scoring | RewardError] = {}
_files: dict[str, int] = {}  # folder -> open file
_shown: set[str] = set()  # folders whose file has a traceback


def scored(
    call: tuple[str, str, Any, Mapping[str, Any] | None],
    *,
    reward: str,
    folder: str | None,
    failed: str,
) -> dict[str, float]:
    """`score` and the parts of one call (data_source, response, ground_truth, extra_info); see reward.compute_score."""
    source, response, truth, given = call
    info = dict(given or {})
    about = dict(info.pop(RESPONSE, {}))
    # str: verl hands numpy's strings over.
    sample = Sample(str(source), str(response), truth, decoded(info), about.get("prompt"), about.get("length"))
    function = _load(reward)
    result = attempt(function, sample) if isinstance(function, Scoring) else function
    if folder is not None:
        about |= {"split": info.get("split"), "index": info.get("index")}
        _write(folder, _line(sample, about, result, function))
    if isinstance(result, Score):
        return {"score": result.score} | {k: v for k, v in result.parts.items() if k not in _COLUMNS_OF_THE_DUMP}
    if failed == "zero":
        return {"score": 0.0}
    raise RewardError(
        f"{record_name(sample, 0)} gets no reward and its response trains nothing: {_told(result, function)}"
    )


def decoded(info: Mapping[str, Any]) -> dict[str, Any]:
    """extra_info as the embedded engine hands it over: the record's own columns, which the parquet keeps as JSON text.

    What verl's managers put beside it (num_turns and others) goes. Files that are not ours pass as they are.
    """
    if not isinstance(info.get("columns"), str):
        return dict(info)
    return {"index": info.get("index"), "split": info.get("split"), **json.loads(info["columns"])}


def _load(arguments: str) -> Scoring | RewardError:
    """The reward, made once; or why it cannot be, which every call then says.

    A user's function is called in a process below this worker, where a hang can be ended: verl waits for ever.
    """
    with _lock:
        if arguments not in _rewards:
            given = json.loads(arguments)
            timeout = given.pop("timeout", TIMEOUT)
            try:
                _rewards[arguments] = Scoring(build_reward(**given), workers=1, timeout=timeout, ours_here=True)
            except RewardError as error:
                _rewards[arguments] = error
        return _rewards[arguments]


def _told(error: BaseException, function: Scoring | RewardError) -> str:
    return last_line(error, function) if isinstance(function, Scoring) else str(function)


def _line(
    sample: Sample, about: Mapping[str, Any], result: Score | BaseException, function: Scoring | RewardError
) -> dict[str, Any]:
    line = {name: about.get(name) for name in ("key", "step", "split", "index")} | {
        "data_source": sample.data_source,
        "score": result.score if isinstance(result, Score) else None,
        "parts": result.parts if isinstance(result, Score) else {},
        "length": about.get("length"),
        "truncated": about.get("truncated"),
    }
    if not isinstance(result, Score):
        line |= {
            "error": _told(result, function),
            "traceback": shown_traceback(result) if isinstance(function, Scoring) else str(function),
            "prompt": about.get("prompt"),
            "response": sample.solution,
            "ground_truth": sample.ground_truth,
        }
    return line


def _write(folder: str, line: dict[str, Any]) -> None:
    """Append to this process's file, a whole line at once. A full disk is said in verl's log and stops nothing."""
    with _lock:
        if "traceback" in line:
            line["traceback"] = None if folder in _shown else line["traceback"]
            _shown.add(folder)
        data = f"{json.dumps(line, ensure_ascii=False, default=str)}\n".encode("utf-8", "backslashreplace")
        try:
            if folder not in _files:
                Path(folder).mkdir(parents=True, exist_ok=True)
                name = os.path.join(folder, f"{socket.gethostname()}-{os.getpid()}.jsonl")
                _files[folder] = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(_files[folder], rest) :]
        except OSError as problem:
            print(f"{folder}: a reward call could not be written down: {problem}", file=sys.stderr, flush=True)

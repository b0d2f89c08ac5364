"""Ray on several machines: a check of a cluster that runs, scripts that start one, and how many CPUs there are.

Leaves out verl's own settings (overrides.py) and the command (command.py).
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo.engine import EngineError, Run

NODES = Path(__file__).resolve().parents[1] / "inside" / "ray_nodes.py"
CONNECT = 5.0  # seconds for the address to answer
ANSWER = 90.0  # seconds for Ray to: its import alone takes some on a cold disk
NODE_BODY = Path(__file__).resolve().with_name("node.sh")
# What verl's V1 trainer holds of Ray's logical CPUs: three for each GPU (single_controller/ray/base.py), one for each
# storage unit of its queue and one for the queue itself; one more must be free whenever an actor starts.
CPUS_PER_GPU, STORAGE_UNITS, OTHERS = 3, 8, 2


@dataclass(frozen=True)
class Cluster:
    """A running Ray. nodes: address and GPUs of each; free: unused GPUs; environment: what a driver of it needs."""

    ray: str
    nodes: tuple[tuple[str, float], ...]
    free: float
    environment: Mapping[str, str] = field(default_factory=dict)


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use: its affinity (Slurm, taskset), and a container's quota. At least 1."""
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return max(1, int(min([cpus, *_quotas(root)])))


def ray_cpus(gpus: int, storage_units: int = STORAGE_UNITS) -> int:
    """Ray's logical CPUs for one machine: all that are usable, and never so few that verl waits for one for ever."""
    return max(usable_cpus(), CPUS_PER_GPU * gpus + storage_units + OTHERS)


def _quotas(root: Path) -> list[float]:
    """The CPU quotas of this process's control groups, in CPUs (cgroup v2, and v1 as containers see it)."""
    found = []
    base = root / "sys/fs/cgroup"
    lines = _read(root / "proc/self/cgroup").splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = base / own.strip("/")
    for place in (folder, *folder.parents):
        quota, _, period = _read(place / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            found.append(int(quota) / int(period))
        if place == base:
            break
    quota, period = (_read(base / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if quota.isdigit() and period.isdigit():  # -1: no limit
        found.append(int(quota) / int(period))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def token_environment(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """What makes Ray 2.60 show the token that lies in the usual place; {} where there is none, or where it is decided.

    Only for a cluster that asks for one: with another, actors of a driver that shows a token are never started.
    """
    named = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    if "RAY_AUTH_MODE" not in environ and (named or (home / ".ray" / "auth_token").is_file()):
        return {"RAY_AUTH_MODE": "token"}
    return {}


def check_cluster(python: Path, address: str, *, nodes: int, gpus: int, seconds: float = ANSWER) -> Cluster:
    """The cluster at HOST:PORT, once it is sure that `nodes` of its nodes have `gpus` GPUs each. Raises EngineError."""
    _reach(address)
    words = [str(python), str(NODES), address, str(nodes), str(gpus)]
    shown: dict[str, str] = {}
    done = _ask(words, address, shown, seconds)
    if "uthentication" in done.stderr and (shown := token_environment(os.environ, Path.home())):
        done = _ask(words, address, shown, seconds)
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise EngineError(f"--ray_address {address}: {_why(done.stderr)}")
    answer = json.loads(lines[-1])
    found = tuple((node["address"], node["gpus"]) for node in answer["nodes"])
    cluster = Cluster(answer["ray"], found, answer["free"], shown)
    there = ", ".join(f"{name}: {count:g}" for name, count in found)
    if done.returncode != 0:
        raise EngineError(
            f"--ray_address {address}: --nnodes {nodes} --n_gpus {gpus} needs {nodes} nodes with {gpus} GPUs each, and "
            f"there are {there}; `ray start --address={address} --num-gpus={gpus}` on a machine adds it (where the "
            "head has a token, with RAY_AUTH_MODE=token)"
        )
    if cluster.free < nodes * gpus:
        raise EngineError(
            f"--ray_address {address}: {cluster.free:g} of {sum(count for _, count in found):g} GPUs are free, and "
            f"{nodes * gpus} are needed; `ray status` on its head shows what uses them"
        )
    return cluster


def _ask(words: list[str], address: str, more: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run the question in verl's environment; raises EngineError when it cannot be asked."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=seconds, env={**os.environ, **more}
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"--ray_address {address}: something answers there, but it is not Ray or it hangs ({seconds:.0f} s); "
            "on its head, `ray status` tells more"
        ) from None
    except OSError as error:
        raise EngineError(f"{words[0]} cannot be run ({error.strerror}); ./train.sh setup --engine verl") from None


def node_script(run: Run, command: str, python: Path) -> str:
    """A bash script that each node runs as `bash launch_node.sh HEAD RANK`: Ray on all of them, `command` on the first.

    command: a line of shell, run in the current folder with RAY_ADDRESS set; python: verl's interpreter. All nodes see
    the same files: the checkout, the environment, the output folder.
    """
    trainer = run.config.trainer
    settings = {
        "nodes": int(trainer.nnodes),
        "gpus": int(trainer.n_gpus_per_node),
        "least_cpus": CPUS_PER_GPU * int(trainer.n_gpus_per_node) + STORAGE_UNITS + OTHERS,
        "folder": str(run.output_dir),
        "python": str(python),
        "ray_nodes": str(NODES),
    }
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            "# Run this on every node, with access to the same files: bash launch_node.sh HEAD RANK",
            "set -euo pipefail",
            "",
            *(f"{name}={shlex.quote(str(value))}" for name, value in settings.items()),
            f"cd {shlex.quote(os.getcwd())}",
            f"train() {{\n  {command}\n}}",
            "",
            NODE_BODY.read_text(encoding="utf-8"),
        ]
    )


def slurm_script(run: Run, node: Path) -> str:
    """A job for `sbatch` that runs the script of `node_script`, written to `node`, on all nodes."""
    trainer = run.config.trainer
    name = shlex.quote(str(node))
    return f"""#!/usr/bin/env bash
#SBATCH --job-name={_job_name(str(trainer.experiment_name))}
#SBATCH --nodes={int(trainer.nnodes)}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={int(trainer.n_gpus_per_node)}
#SBATCH --exclusive
#SBATCH --mem=0
# Add what your cluster asks for: --partition, --account, --time. `sbatch` takes them on its command line too.
set -euo pipefail

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# One task per node and all of the node's CPUs for it; when one node fails, the job ends.
srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 \\
  bash {name} "$head"
"""


def _job_name(text: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in text)


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise EngineError(f"--ray_address {address}: write HOST:PORT, as `ray start --head` prints it (10.0.0.1:6379)")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()
    except OSError as error:
        raise EngineError(
            f"--ray_address {address}: nothing answers there ({error.strerror or error}); "
            f"`ray start --head --port={port}` on that machine starts Ray"
        ) from None


def _why(text: str) -> str:
    """One line from what Ray printed when it did not connect."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    mismatch = next((line for line in lines if "Version mismatch" in line), None)
    if mismatch:
        at = lines.index(mismatch)
        return " ".join(lines[at : at + 6]) + " Use the same Ray and Python on all nodes"
    if any("uthentication" in line for line in lines):
        return (
            "the cluster asks for a token: RAY_AUTH_TOKEN_PATH=FILE RAY_AUTH_MODE=token, with the file of its head "
            "(~/.ray/auth_token there)"
        )
    if any("No node info found" in line or "Ray expects this IP address" in line for line in lines):
        return "this machine is no node of that cluster; start the launcher on one that is, such as its head"
    return lines[-1] if lines else "Ray gave no answer"

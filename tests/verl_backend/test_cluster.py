"""Ray on several machines: CPUs counted, scripts that a shell accepts, and two real Ray nodes on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from omegaconf import OmegaConf

from grpo.engine import EngineError, Run
from grpo.verl_backend.running import cluster, tree


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def run_of(out: Path, *, nodes: int = 9, gpus: int = 8, name: str = "GSM8K 32B 长") -> Run:
    config = OmegaConf.create({"trainer": {"nnodes": nodes, "n_gpus_per_node": gpus, "experiment_name": name}})
    return Run(config, {}, out, None, out / "val.parquet")


def test_without_limits_all_cpus_of_the_process_are_usable(tmp_path: Path):
    assert cluster.usable_cpus(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("contents", "quotas"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, [1.5]),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, []),
        (
            {
                "proc/self/cgroup": "12:devices:/x\n0::/slurm/job_7\n",
                "sys/fs/cgroup/slurm/job_7/cpu.max": "max 100000\n",
                "sys/fs/cgroup/slurm/cpu.max": "400000 100000\n",
            },
            [4.0],
        ),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, [0.5]),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, []),
    ],
)
def test_a_containers_quota_is_counted_in_cpus(tmp_path: Path, contents: dict[str, str], quotas: list[float]):
    root = files(tmp_path, contents)
    assert cluster._quotas(root) == quotas
    most = len(os.sched_getaffinity(0))
    assert cluster.usable_cpus(root) == max(1, int(min([most, *quotas])))


def test_ray_has_more_logical_cpus_than_verl_holds(monkeypatch: pytest.MonkeyPatch):
    """8 GPUs x 3, 8 storage units, their queue, and one free for an actor that starts: 34; with fewer verl waits."""
    monkeypatch.setattr(cluster, "usable_cpus", lambda: 2)
    assert cluster.ray_cpus(8) == 34
    assert cluster.ray_cpus(1, storage_units=1) == 6
    monkeypatch.setattr(cluster, "usable_cpus", lambda: 96)
    assert cluster.ray_cpus(8) == 96


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1:10001", "head:port", ":6379", "head:0", "auto"])
def test_an_address_is_a_host_and_a_port(address: str):
    with pytest.raises(EngineError, match="write HOST:PORT"):
        cluster.check_cluster(Path(sys.executable), address, nodes=1, gpus=1)


def test_an_address_where_nothing_answers_is_one_line_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match=rf"127.0.0.1:{port}: nothing answers there \(Connection refused\)"):
        cluster.check_cluster(Path(sys.executable), f"127.0.0.1:{port}", nodes=1, gpus=1)


@pytest.mark.slow
def test_a_port_of_something_else_is_given_up(tmp_path: Path):
    """A server that takes the connection and says nothing, and a python that waits for it as Ray would."""
    waits = tmp_path / "python"
    waits.write_text("#!/bin/sh\nsleep 30\n")
    waits.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EngineError, match="it is not Ray or it hangs"):
            cluster.check_cluster(waits, address, nodes=1, gpus=1, seconds=0.3)


def test_rays_own_words_become_one_line():
    """Printed by Ray 2.60 (its lines shortened)."""
    mismatch = (
        "Traceback (most recent call last):\n  File x\nRuntimeError: Version mismatch: The cluster was started with:\n"
        "    Ray: 2.9.0\n    Python: 3.10.12\nThis process on node 10.0.0.1 was started with:\n"
        "    Ray: 2.60.0\n    Python: 3.11.9\n"
    )
    line = cluster._why(mismatch)
    assert "Ray: 2.9.0 Python: 3.10.12" in line
    assert "Ray: 2.60.0 Python: 3.11.9" in line
    assert "asks for a token" in cluster._why("RPC error: InvalidAuthToken: Authentication token is missing\nlast")
    assert "no node of that cluster" in cluster._why("RuntimeError: No node info found matching attributes: ''\nlast")
    assert cluster._why("a\nConnectionError: b\n\n") == "ConnectionError: b"
    assert cluster._why("") == "Ray gave no answer"


def test_a_token_in_the_usual_place_is_used_for_a_cluster_with_an_address(tmp_path: Path):
    assert cluster.token_environment({}, tmp_path) == {}
    files(tmp_path, {".ray/auth_token": "secret"})
    assert cluster.token_environment({}, tmp_path) == {"RAY_AUTH_MODE": "token"}
    assert cluster.token_environment({"RAY_AUTH_MODE": "disabled"}, tmp_path) == {}
    assert cluster.token_environment({"RAY_AUTH_TOKEN": "x"}, tmp_path / "no home") == {"RAY_AUTH_MODE": "token"}


def test_the_scripts_of_nine_nodes_with_eight_gpus_are_good_shell(tmp_path: Path):
    """S0-37: 32B on 9 x 8 GPUs."""
    out = tmp_path / "输出 a"
    out.mkdir()
    node, job = out / "launch_node.sh", out / "launch.slurm.sh"
    run = run_of(out)
    node.write_text(
        cluster.node_script(run, './train.sh --nnodes 9 --ray_address "$RAY_ADDRESS"', Path("/env/bin/python"))
    )
    job.write_text(cluster.slurm_script(run, node))
    text = node.read_text()
    for line in ("nodes=9", "gpus=8", "least_cpus=34", f"folder='{out}'", "python=/env/bin/python"):
        assert f"\n{line}\n" in text
    head = job.read_text().split("set -euo")[0]
    assert "#SBATCH --job-name=GSM8K-32B--\n" in head
    assert "#SBATCH --nodes=9\n" in head
    assert "#SBATCH --gpus-per-node=8\n" in head
    for path in (node, job):
        subprocess.run(["bash", "-n", str(path)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        done = subprocess.run([shellcheck, str(node), str(job)], capture_output=True, text=True)
        assert done.stdout == ""


def test_a_node_script_without_its_words_says_how_to_run_it(tmp_path: Path):
    script = tmp_path / "launch_node.sh"
    script.write_text(cluster.node_script(run_of(tmp_path), "true", Path("/env/bin/python")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    for words in ([], ["head"]):
        done = subprocess.run(["bash", str(script), *words], capture_output=True, text=True, env=environment)
        assert done.returncode != 0
        assert "HEAD RANK" in done.stderr


# --- with real Ray ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def verl_python(missing: Callable[[str], NoReturn]) -> Path:
    """The interpreter of the environment that has verl and Ray, for CPUs."""
    from grpo.verl_backend.installation.environment import find_environment

    found = find_environment("cpu")
    return Path(found.program) if found else missing("verl for CPUs; ./train.sh setup --engine verl --device cpu")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


@pytest.mark.verl
def test_two_real_nodes_start_are_counted_train_and_leave_nothing(tmp_path: Path, verl_python: Path, free_port: int):
    """The scripts as a user runs them, on one machine with a GPU of Ray's on each; the head's command is the check
    that the launcher makes of a cluster, and it sees exactly these two nodes."""
    check = tmp_path / "check.py"
    check.write_text(
        "import os, sys\nfrom pathlib import Path\nfrom grpo.engine import EngineError\n"
        "from grpo.verl_backend.running.cluster import check_cluster\n"
        "python, address = Path(sys.argv[1]), os.environ['RAY_ADDRESS']\n"
        "found = check_cluster(python, address, nodes=2, gpus=1)\n"
        "print('nodes', len(found.nodes), 'free', found.free)\n"
        "for nodes, gpus in ((3, 1), (2, 2)):\n"
        "    try:\n        check_cluster(python, address, nodes=nodes, gpus=gpus)\n"
        "    except EngineError as error:\n        print(error)\n"
        "os.environ['RAY_AUTH_MODE'] = 'disabled'\n"
        "try:\n    check_cluster(python, address, nodes=2, gpus=1)\nexcept EngineError as error:\n    print(error)\n"
    )
    repo = Path(__file__).resolve().parents[2]
    script = tmp_path / "launch_node.sh"
    command = f'PYTHONPATH="{repo}" "{sys.executable}" "{check}" "{verl_python}"'
    script.write_text(cluster.node_script(run_of(tmp_path, nodes=2, gpus=1), command, verl_python))
    mark = f"test {os.getpid()}"
    environment = {**os.environ, "RAY_PORT": str(free_port), "RAY_PATIENCE": "120", tree.MARK: mark}
    words = ["bash", str(script), "127.0.0.1"]
    worker = subprocess.Popen([*words, "1"], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        head = subprocess.run([*words, "0"], env=environment, capture_output=True, text=True, timeout=180)
        assert head.returncode == 0, head.stderr
        assert worker.wait(30) == 0
        assert worker.stderr is not None
        assert "the head is gone, leaving" in worker.stderr.read()
        lines = [line for line in head.stdout.splitlines() if not line.startswith("waiting")]
        assert lines[1] == "nodes 2 free 2.0"
        assert "--nnodes 3 --n_gpus 1 needs 3 nodes with 1 GPUs each, and there are" in lines[2]
        assert "--nnodes 2 --n_gpus 2 needs 2 nodes with 2 GPUs each" in lines[3]
        assert "asks for a token" in lines[4]
        assert tree.processes_of(mark) == []
        assert (tmp_path / "ray_token").stat().st_mode & 0o077 == 0
    finally:
        worker.kill()
        assert tree.kill(mark) == []

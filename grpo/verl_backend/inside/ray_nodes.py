"""Which nodes a Ray cluster has, asked in verl's environment: `python ray_nodes.py HOST:PORT NODES GPUS [SECONDS]`.

Waits up to SECONDS for so many nodes with so many GPUs each, then prints what is there as JSON in its last line; the
exit code is 0 when that is enough. Leaves out what to tell the user (cluster.py).
"""

from __future__ import annotations

import json
import sys
import time

PAUSE = 2.0


def main(address: str, nodes: int, gpus: int, seconds: float) -> int:
    """Ask the cluster at `address`, and print."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="error")
    deadline = time.monotonic() + seconds
    said = -1
    while True:
        found = [
            {"address": node["NodeManagerAddress"], "gpus": node["Resources"].get("GPU", 0)}
            for node in ray.nodes()
            if node["Alive"]
        ]
        fit = sum(node["gpus"] >= gpus for node in found)
        if fit >= nodes or time.monotonic() > deadline:
            break
        if fit != said:
            print(f"waiting for Ray: {fit} of {nodes} nodes (GPUs on each: {gpus})", flush=True)
            said = fit
        time.sleep(PAUSE)
    free = ray.available_resources().get("GPU", 0)
    print(json.dumps({"ray": ray.__version__, "free": free, "nodes": found}))
    return 0 if fit >= nodes else 1


if __name__ == "__main__":
    host, count, each, *wait = sys.argv[1:]
    sys.exit(main(host, int(count), int(each), float(wait[0]) if wait else 0.0))

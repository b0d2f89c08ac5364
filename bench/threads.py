"""What waiting threads cost on a machine that is busy with something else.

    python bench/threads.py

Runs the same forward and backward pass in processes of their own, beside one busy process per core, with OpenMP
threads that spin while they wait (its default) and threads that sleep (what the embedded engine asks for). Prints
the seconds of a pass and the ratio.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

PASS = """
import time, torch
from torch import nn
x, layer = torch.randn(128, 40, 128), nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
for _ in range(3): layer(x).sum().backward()
start = time.perf_counter()
for _ in range(10): layer(x).sum().backward()
print((time.perf_counter() - start) / 10)
"""


def seconds(policy: str | None) -> float:
    """Median seconds of a pass with this OMP_WAIT_POLICY (None: OpenMP's default)."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if policy:
        env["OMP_WAIT_POLICY"] = policy
    runs = [subprocess.run([sys.executable, "-c", PASS], env=env, capture_output=True, text=True) for _ in range(3)]
    return statistics.median(float(run.stdout) for run in runs)


def main() -> None:
    """Measure idle, then busy."""
    for busy in (0, os.cpu_count() or 1):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            spinning, sleeping = seconds(None), seconds("PASSIVE")
        finally:
            for other in others:
                other.kill()
        print(
            f"{busy} busy processes: spinning {spinning:.4f} s, sleeping {sleeping:.4f} s a pass, "
            f"ratio {spinning / sleeping:.2f}"
        )


if __name__ == "__main__":
    main()

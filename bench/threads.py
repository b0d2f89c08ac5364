"""What waiting threads cost on a machine that is busy with something else.

    python bench/threads.py

Runs the same forward and backward pass in processes of their own, beside one busy process per core, with OpenMP
threads that spin for long while they wait (its default), that spin shortly (what the embedded engine asks for), and
that sleep at once. Prints the seconds of a pass and the ratios.
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


WAITS = {"spin": {}, "spin shortly": {"GOMP_SPINCOUNT": "1000"}, "sleep": {"OMP_WAIT_POLICY": "PASSIVE"}}


def seconds(settings: dict[str, str]) -> float:
    """Median seconds of a pass with these variables in the environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [sys.executable, "-c", PASS]
    runs = [subprocess.run(command, env=env | settings, capture_output=True, text=True, check=True) for _ in range(3)]
    return statistics.median(float(run.stdout) for run in runs)


def main() -> None:
    """Measure on an idle machine, then beside a busy process per core."""
    for busy in (0, os.cpu_count() or 1):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            took = {name: seconds(settings) for name, settings in WAITS.items()}
        finally:
            for other in others:
                other.kill()
        rows = (f"{name} {value:.4f} s ({took['spin'] / value:.2f}x)" for name, value in took.items())
        print(f"{busy} busy processes: {', '.join(rows)}")


if __name__ == "__main__":
    main()

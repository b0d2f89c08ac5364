"""What verl is doing during its start, which takes minutes, told from its log. Leaves out training (records.py)."""

from __future__ import annotations

import re
from typing import NamedTuple

from grpo.verl_backend.running.child_log import parted

WORKERS = "starting workers"
READY = "starting the rollout"
VALIDATION = "first validation"
ROLLOUT = "first rollout"


class _Phase(NamedTuple):
    """It begins with a line of this writer ("": any) that matches."""

    writer: str
    line: re.Pattern[str]
    text: str


# In the order in which they come; a line of an earlier phase does not lead back. Texts of verl 0.9.1's PPOTrainer, of
# Ray 2.60, of transformers 5 ("Loading weights") and 4 ("Loading checkpoint shards"), and of vLLM.
_PHASES = (
    _Phase("", re.compile(r"ray init kwargs:"), "starting Ray"),
    _Phase("", re.compile(r".*(Started a local Ray instance|Connected to Ray cluster)"), "Ray up"),
    _Phase("TaskRunner", re.compile(r"Using dataset class"), "reading the data"),
    _Phase("TaskRunner", re.compile(r"worker group kwargs"), WORKERS),
    _Phase("WorkerDict", re.compile(r"Loading (weights|checkpoint shards)"), "loading weights"),
    _Phase("TaskRunner", re.compile(r"actor and ref model engine initialized"), "starting vLLM"),
    _Phase("vLLMHttpServer", re.compile(r"Capturing CUDA graph"), "vLLM captures CUDA graphs"),
    _Phase("TaskRunner", re.compile(r"LLMServerManager: "), "vLLM up"),
    _Phase("TaskRunner", re.compile(r"Resuming from .*setting global step"), "loading the checkpoint"),
    _Phase("TaskRunner", re.compile(r"all initialize finished, ready to fit"), READY),
    _Phase("AgentLoopWorker", re.compile(r""), VALIDATION),
    _Phase("TaskRunner", re.compile(r".*Initial validation metrics"), ROLLOUT),
)
_WORKER = re.compile(r"\((WorkerDict pid=[^()]*)\)")
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\]")


class Phases:
    """The phase of the start, from the lines so far.

    workers: how many verl starts, one per GPU; validates: whether it validates before the first step.
    """

    def __init__(self, workers: int, *, validates: bool) -> None:
        self._all, self._validates = workers, validates
        self._at = -1
        self._seen: set[str] = set()
        self._most = 0

    @property
    def text(self) -> str:
        """A few words: "workers 3/8", "loading weights"."""
        name = _PHASES[self._at].text if self._at >= 0 else "starting verl"
        if name == WORKERS and self._most:
            return f"workers {self._most}/{self._all}"
        return ROLLOUT if name == VALIDATION and not self._validates else name

    def feed(self, line: str) -> bool:
        """Take one clean line of the log; whether the phase has another text now."""
        before = self.text
        self._count(line)
        writer, _, text = parted(line)
        for at in range(len(_PHASES) - 1, self._at, -1):
            phase = _PHASES[at]
            # The agent loop answers as soon as it is up: nothing but its being ready leads from there to the next.
            if writer.startswith(phase.writer) and phase.line.match(text) and self._may(phase):
                self._at = at
                break
        return self.text != before

    def _may(self, phase: _Phase) -> bool:
        return phase.text != VALIDATION or (self._at >= 0 and _PHASES[self._at].text == READY)

    def _count(self, line: str) -> None:
        """Ray prints a line that several workers write once, and how often it came later."""
        if (worker := _WORKER.match(line)) and (self._at < 0 or _PHASES[self._at].text == WORKERS):
            self._seen.add(worker[1])
            repeated = _REPEATED.search(line)
            most = max(len(self._seen), int(repeated[1]) + 1 if repeated else 0)
            self._most = min(self._all, max(self._most, most))

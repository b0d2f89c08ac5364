"""The verl engine behind the seam: what it cannot honour, the exact command, and the way into a run (training.py).

Leaves out how keys become overrides (overrides.py) and the rules that hold between them (preflight.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import OmegaConf

from grpo.engine import EngineError, Refusal, Result, Run
from grpo.verl_backend.checks.facts import gather
from grpo.verl_backend.checks.preflight import preflight
from grpo.verl_backend.installation.environment import environment_problems, find_environment, install_environment
from grpo.verl_backend.running.cluster import check_cluster
from grpo.verl_backend.settings import algorithm, command, reward_settings
from grpo.verl_backend.settings.guard import guarded, misfits
from grpo.verl_backend.settings.overrides import decided, overrides
from grpo.verl_backend.settings.scripts import scripts

# Changed keys that mean nothing here: --debug's display, parts of a small model that this engine does not make, and the
# critic of PPO, which no estimator that is taken here has.
_NOTHING = ("launcher.debug", "launcher.scratch.", "launcher.sft.", "critic.")
_EMBEDDED = "use --engine embedded"
SETUP = "./train.sh setup --engine verl --device"
# key -> (whether its value can be honoured, why not and what to do)
_ONLY: dict[str, tuple[Callable[[Any], bool], str]] = {
    "launcher.repetition_penalty": (
        lambda value: value == 1,
        f"verl's sampling loop fixes it at 1; leave it out, or {_EMBEDDED}",
    ),
    "launcher.min_response_length": (
        lambda value: value == 0,
        f"verl's sampling loop has no such setting; leave it out, or {_EMBEDDED}",
    ),
    "launcher.sft.steps": (
        lambda value: value == 0,
        f"verl starts from the model as it is; name a fine-tuned one with --model, or {_EMBEDDED}",
    ),
    "launcher.qlora": (
        lambda value: value is None,
        f"verl trains LoRA over unrounded weights; leave it out, or {_EMBEDDED}",
    ),
    "launcher.encoder_decoder": (
        lambda value: not value,
        f"verl has no encoder-decoder models; leave it out, or {_EMBEDDED}",
    ),
    "launcher.save_best": (
        lambda value: value is None,
        "verl keeps the newest checkpoints; keep them all (--keep) and compare the evaluations in metrics.jsonl, or "
        f"{_EMBEDDED}",
    ),
    "launcher.drop_last": (
        bool,
        "verl always leaves the last, incomplete batch out; choose a train_batch_size that divides the prompts",
    ),
    "actor_rollout_ref.model.path": (
        lambda value: value != "scratch",
        f"verl needs a model folder or a Hub id: --model PATH, or {_EMBEDDED}",
    ),
    "actor_rollout_ref.actor.strategy": (
        lambda value: value != "megatron",
        "megatron has its own set of keys and comes with a later version; use fsdp2",
    ),
    "trainer.device": (
        lambda value: value != "mps",
        f"verl trains on CUDA, and on the CPU for debugging; {_EMBEDDED}",
    ),
}


class VerlEngine:
    """GRPO on any number of GPUs by verl (Ray, FSDP, vLLM). See grpo.engine.Engine for what each method promises."""

    name = "verl"

    def __init__(self) -> None:
        self._cluster: Mapping[str, str] = {}  # variables that the Ray of --ray_address asks for

    def refusals(self, run: Run, *, here: bool = True) -> list[Refusal]:
        """Settings this engine cannot honour, one line each with what to do instead."""
        environment = find_environment(device_of(run)) if here else None
        lines = misfits(overrides(run), environment.config if environment else None)
        known = [] if lines else preflight(run, gather(run, here=here))
        for key, (honoured, instead) in _ONLY.items():
            value = _value(run, key)
            if not honoured(value):
                lines.append(f"{key}={_shown(value)} ({run.origins.get(key, 'default')}): {instead}")
        data = run.config.data
        if not data.filter_overlong_prompts and data.truncation != "left":
            lines.append(
                f"data.truncation={data.truncation}: verl cuts prompts that are too long on the left; set it to left, "
                "or keep data.filter_overlong_prompts=true"
            )
        if run.records is not None or run.reward is not None:
            lines.append(
                f"records and rewards made in Python do not reach verl's processes; name files, or {_EMBEDDED}"
            )
        trainer = run.config.trainer
        if here and trainer.nnodes > 1 and run.config.launcher.ray_address is None:
            lines.append(
                f"trainer.nnodes={trainer.nnodes}: several machines need a Ray cluster; --ray_address HOST:PORT names "
                "one, and the same command with --dry_run writes scripts that start one (launch_node.sh, launch.slurm)"
            )
        lines += [*reward_settings.refusals(run), *algorithm.refusals(run)]
        return [Refusal(line) for line in lines] + known

    def no_effect(self, run: Run) -> list[str]:
        """Changed keys that mean nothing here: said, not refused."""
        changed = [key for key, origin in run.origins.items() if not origin.startswith("default")]
        return [key for key in changed if any(key == name or key.startswith(name) for name in _NOTHING)]

    def plan(self, run: Run) -> list[str]:
        """The command that a shell can run, one override per line; before it, as comments, what had to be changed."""
        python, words, notes = self._command(run)
        if find_environment(device_of(run)) is None:
            notes = [
                f"verl is not installed here; the run makes its environment first: {SETUP} {device_of(run)}",
                *notes,
            ]
        return [*(f"# {note}" for note in notes), *command.shell_lines(python, words)]

    def decided(self, run: Run) -> list[tuple[str, Any, str]]:
        """What verl is told though the user did not ask: (key, value, origin)."""
        return decided(run)

    def scripts(self, run: Run) -> dict[str, str]:
        """launch.sh, and for several machines two more: file name -> text."""
        python, words, _ = self._command(run)
        return scripts(run, python, words)

    def _command(self, run: Run) -> tuple[str, list[str], list[str]]:
        """(Python, overrides, what was changed to make them fit the installed verl)."""
        environment = find_environment(device_of(run))
        if environment is None:
            return "python3", *guarded(overrides(run))
        return environment.program, *guarded(overrides(run), environment.config)

    def prepare(self, run: Run, say: Callable[[str], None]) -> None:
        """Have verl installed and sound, and the cluster there that the run names. Raises EngineError."""
        device = device_of(run)
        environment = find_environment(device)
        if environment is None:
            say(f"verl is not installed yet: making its environment ({SETUP} {device})")
            environment = install_environment(device, say)
        if problems := environment_problems(environment, device):
            raise EngineError("\n".join(problems))
        if address := run.config.launcher.ray_address:
            trainer = run.config.trainer
            there = check_cluster(environment.python, address, nodes=trainer.nnodes, gpus=trainer.n_gpus_per_node)
            self._cluster = there.environment

    def train(self, run: Run) -> Result:
        """Train; raises EngineError, RewardError, or Interrupted."""
        from grpo.verl_backend.training import train

        environment = find_environment(device_of(run))
        if environment is None:
            raise EngineError("verl is not installed; ./train.sh setup --engine verl makes its environment")
        return train(run, environment, self._cluster)


def device_of(run: Run) -> str:
    """Which of verl's environments the run needs, "cuda" or "cpu"."""
    return "cpu" if run.config.trainer.device == "cpu" else "cuda"


def _value(run: Run, key: str) -> Any:
    value = OmegaConf.select(run.config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

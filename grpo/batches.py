"""How a batch is cut up, in prompts and in responses: steps, mini-batches, GPUs, micro-batches.

Beside it the same in TRL's arguments, which have counted in two ways. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.config import Settings
from grpo.engine import schedule
from grpo.rules import ACTOR, BATCH, DYNAMIC, MICRO, MINI, N

TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"


@dataclass(frozen=True)
class Arithmetic:
    """Batches in numbers. prompts, responses, optimizer_steps: of one step; left_out: prompts of an epoch.

    devices: over how many a batch is shared; responses_per_device: of an optimizer step.
    micro_batches: forward and backward passes of an optimizer step on each device; by tokens, the most there can be.
    train: prompts to train on, None = not known before training; then steps_per_epoch and steps may be None.
    """

    prompts: int
    responses: int
    optimizer_steps: int
    responses_per_optimizer_step: int
    devices: int
    responses_per_device: int
    micro_batches: int
    train: int | None
    steps_per_epoch: int | None
    steps: int | None
    left_out: int


def devices_of(settings: Settings, engine: str) -> int:
    """Over how many devices this engine shares a batch evenly; the embedded one shares whole groups, by tokens."""
    return settings["trainer.n_gpus_per_node"] * settings["trainer.nnodes"] if engine == "verl" else 1


def arithmetic(settings: Settings, train: int | None, *, devices: int = 1) -> Arithmetic:
    """The batch arithmetic of a run on `train` prompts."""
    batch, mini, n = settings[BATCH], settings[MINI], settings[N]
    per_epoch, steps, left_out = None, settings["trainer.total_training_steps"], 0
    if train is not None:
        per_epoch, steps = schedule(settings.config(), train)
        left_out = train % batch if settings["launcher.drop_last"] else 0
    share = -(-mini * n // devices)
    return Arithmetic(
        prompts=batch,
        responses=batch * n,
        optimizer_steps=batch // mini * settings[f"{ACTOR}.ppo_epochs"],
        responses_per_optimizer_step=mini * n,
        devices=devices,
        responses_per_device=share,
        micro_batches=_micro_batches(settings, share),
        train=train,
        steps_per_epoch=per_epoch,
        steps=steps,
        left_out=left_out,
    )


def arithmetic_lines(settings: Settings, numbers: Arithmetic) -> list[str]:
    """The arithmetic in words."""
    n, passes = settings[N], settings[f"{ACTOR}.ppo_epochs"]
    over = f", over {count(passes, 'pass', 'passes')}" if passes > 1 else ""
    return [
        f"each step    {count(numbers.prompts, 'prompt')} x {n} responses = {count(numbers.responses, 'response')}",
        f"             {count(numbers.optimizer_steps, 'optimizer step')} of {count(settings[MINI], 'prompt')} "
        f"({count(numbers.responses_per_optimizer_step, 'response')}) each{over}",
        *_device_lines(settings, numbers),
        *_epoch_lines(settings, numbers),
        *_trl_lines(settings, numbers),
    ]


def trl_old(per_device: int, accumulation: int, processes: int, num_generations: int) -> tuple[int, int]:
    """(prompts, responses) of an optimizer step as TRL counted first: per_device_train_batch_size counts prompts."""
    prompts = per_device * accumulation * processes
    return prompts, prompts * num_generations


def trl_new(per_device: int, accumulation: int, processes: int, num_generations: int) -> tuple[int, int]:
    """(prompts, responses) of an optimizer step as TRL counts now: per_device_train_batch_size counts responses.

    Raises ValueError where the responses are not whole groups.
    """
    responses = per_device * accumulation * processes
    if responses % num_generations:
        raise ValueError(f"{responses} responses are no whole groups of {num_generations}")
    return responses // num_generations, responses


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 prompt`, `1,868 steps`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _micro_batches(settings: Settings, share: int) -> int:
    """Of so many responses on one device; cut by tokens, as many as full-length responses would need."""
    if not settings[DYNAMIC] and settings[MICRO]:
        return -(-share // settings[MICRO])
    longest = settings["data.max_prompt_length"] + settings["data.max_response_length"]
    return -(-share // max(1, settings[TOKENS] // longest))


def _device_lines(settings: Settings, numbers: Arithmetic) -> list[str]:
    """What one of several GPUs has to do of an optimizer step."""
    counted = not settings[DYNAMIC] and settings[MICRO]
    if numbers.devices == 1 and not counted:
        return []
    micro = (
        f"{count(numbers.micro_batches, 'micro-batch', 'micro-batches')} of {count(settings[MICRO], 'response')}"
        if counted
        else f"{count(numbers.micro_batches, 'micro-batch', 'micro-batches')} of {settings[TOKENS]:,} tokens at most"
    )
    if numbers.devices == 1:
        return [f"             each in {micro}"]
    shared = f"{count(numbers.responses_per_device, 'response')} of each optimizer step, in {micro}"
    return [f"each GPU     {shared} ({numbers.devices} GPUs)"]


def _epoch_lines(settings: Settings, numbers: Arithmetic) -> list[str]:
    if numbers.train is None or numbers.steps_per_epoch is None:
        known = f"{count(numbers.steps, 'step')} at most" if numbers.steps else "known once the data is here"
        return [f"in all       {known}"]
    left = f"; {count(numbers.left_out, 'prompt')} left over (launcher.drop_last)" if numbers.left_out else ""
    epoch = count(numbers.steps_per_epoch, "step")
    assert numbers.steps is not None
    epochs = settings["trainer.total_epochs"]
    limited = numbers.steps < numbers.steps_per_epoch * epochs
    why = "by total_training_steps" if limited else f"in {count(epochs, 'epoch')}"
    full = numbers.left_out or numbers.train % numbers.prompts == 0
    samples = f"{'' if full else 'at most '}{numbers.steps * numbers.responses:,} responses"
    return [
        f"each epoch   {count(numbers.train, 'prompt')} to train on = {epoch}{left}",
        f"in all       {count(numbers.steps, 'step')} {why}: {samples}",
    ]


def _trl_lines(settings: Settings, numbers: Arithmetic) -> list[str]:
    """The same optimizer step in TRL's arguments: what per_device x accumulation has to be on each of the devices."""
    devices, n = numbers.devices, settings[N]
    prompts, responses = settings[MINI], numbers.responses_per_optimizer_step
    if responses % devices:
        return []
    on = f"on each of {devices} GPUs, " if devices > 1 else ""
    old = f"{prompts // devices:,}" if prompts % devices == 0 else "no whole number"
    return [
        f"as in TRL    num_generations={n}; {on}per_device_train_batch_size x gradient_accumulation_steps =",
        f"             {old} where it counts prompts (old), {responses // devices:,} where it counts completions (new)",
    ]

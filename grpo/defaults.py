"""What the launcher decides for the user, each with origin "launcher" and one line that says so.

Which recipe, model and data stand in when none is named, a batch that fits the data, and what --debug makes small.
Nothing that the user set is ever changed here: it is kept, or refused.
"""

from __future__ import annotations

import math

from grpo.config import ConfigError, Draft, ours
from grpo.flags import REPO
from grpo.model_rules import ADAPTER, MODEL
from grpo.rules import BATCH, DYNAMIC, MICRO, MINI, N, said
from grpo.start_from import INIT, start_from
from grpo.values import is_reference

LAUNCHER = "launcher"
DEMO = "demo"
STANDARD_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
PROMPT_KEY = "launcher.data.prompt_key"
TRAIN, VAL = "data.train_files", "data.val_files"
SHIPPED_TRAIN = REPO / "data_prep" / "arithmetic_train.json"
SHIPPED_VAL = REPO / "data_prep" / "arithmetic_val.json"
# What --debug makes at most this large, where the user did not set it.
DEBUG = {
    BATCH: 2,
    MINI: 2,
    "data.max_response_length": 64,
    "data.val_max_samples": 4,
    "data.dataloader_num_workers": 0,
    "reward.num_workers": 1,
    "trainer.total_training_steps": 2,
    "launcher.sft.steps": 20,
}


def wants_demo(draft: Draft) -> bool:
    """Whether neither data nor a model is named; verl cannot make the demo's small model."""
    nothing_named = all(draft.raw[key] is None for key in (TRAIN, MODEL, INIT, ADAPTER))
    return nothing_named and draft.raw["launcher.engine"] != "verl" and draft.origins[PROMPT_KEY] == "default"


def demo_note(recipes: list[str]) -> str:
    """The line that says what runs when nothing is named. recipes: what lies over the demo."""
    under = f" under recipe {' + '.join(recipes)}" if recipes else ""
    return (
        f"no data and no model named: running recipe demo{under}, a small new model that learns to add. With your own: "
        f"./train.sh --data prompts.json --model {STANDARD_MODEL}"
    )


def fill(draft: Draft) -> list[str]:
    """Name the data or the model that is missing, and what follows from other choices; the lines that say so."""
    notes = start_from(draft)
    if draft.raw[MODEL] is None:
        draft.put(MODEL, STANDARD_MODEL, LAUNCHER)
        notes.append(f"no model named: taking {STANDARD_MODEL}; --model names another")
    if draft.raw[TRAIN] is None:
        if draft.origins[PROMPT_KEY] != "default":
            column = f"{PROMPT_KEY}={draft.raw[PROMPT_KEY]} ({draft.origins[PROMPT_KEY]})"
            raise ConfigError(f"no data named, and {column} is no column of the shipped data; give --data FILE")
        draft.put(TRAIN, str(SHIPPED_TRAIN), LAUNCHER)
        if draft.raw[VAL] is None:
            draft.put(VAL, str(SHIPPED_VAL), LAUNCHER)
        notes.append("no data named: taking the shipped arithmetic prompts; --data names yours")
    if draft.raw[MICRO] is not None and draft.origins[DYNAMIC] == "default":
        draft.put(DYNAMIC, False, LAUNCHER)
        notes.append(f"{MICRO} counts responses, so {DYNAMIC} is off")
    lengths = [draft.raw[key] for key in ("data.max_prompt_length", "data.max_response_length")]
    longest = sum(length for length in lengths if isinstance(length, int))
    if isinstance(draft.raw[TOKENS], int) and draft.raw[TOKENS] < longest and _free(draft, TOKENS):
        draft.put(TOKENS, longest, LAUNCHER)
        notes.append(f"{TOKENS} is {longest}, so that one prompt with its response fits")
    if draft.raw["launcher.debug"] is True:
        _shrink_for_debug(draft)
    return notes


def share_batch(draft: Draft, gpus: int) -> list[str]:
    """Make a default batch one that so many GPUs share evenly, and say so; what the user set is left to the engine."""
    settings = draft.settings()
    batch, unit = settings[BATCH], gpus // math.gcd(settings[N], gpus)
    mini_is_free = is_reference(draft.raw[MINI]) or not settings.by_user(MINI)
    if batch % unit == 0 or settings.by_user(BATCH) or not mini_is_free:
        return []
    nearest = max(1, round(batch / unit)) * unit
    draft.put(BATCH, nearest, LAUNCHER)
    if not is_reference(draft.raw[MINI]):
        draft.reset(MINI)
    return [f"{gpus} GPUs share a step evenly: train_batch_size is {nearest} instead of {batch}"]


def fit_batch(draft: Draft, prompts: int, *, gpus: int = 1) -> list[str]:
    """Make a default batch no larger than the data, and say so; raise ConfigError for one that the user set.

    prompts: what is left to train on; gpus: over how many a batch is divided (1 where it is not).
    """
    settings = draft.settings()
    batch, mini = settings[BATCH], settings[MINI]
    unit = gpus // math.gcd(settings[N], gpus)
    mini_is_free = is_reference(draft.raw[MINI]) or not settings.by_user(MINI)
    step = unit if mini_is_free else math.lcm(unit, mini)
    largest = prompts // step * step
    if batch <= prompts:
        return []
    if settings.by_user(BATCH) or largest == 0:
        key = BATCH if settings.by_user(BATCH) or mini_is_free else MINI
        limit = largest or (prompts // unit * unit)
        todo = f"the largest that works is {limit}" if limit else f"{unit} prompts or more are needed on {gpus} GPUs"
        text = f"{said(settings, key)} is more than the {_count(prompts)} to train on; {todo}"
        raise ConfigError(text, fix={key: limit} if limit else {})
    draft.put(BATCH, largest, LAUNCHER)
    if not is_reference(draft.raw[MINI]) and mini_is_free:
        draft.put(MINI, math.gcd(mini, largest) if mini <= largest else largest, LAUNCHER)
    return [f"{_count(prompts)} to train on: train_batch_size is {largest} instead of {batch}"]


def _count(prompts: int) -> str:
    return "1 prompt" if prompts == 1 else f"{prompts:,} prompts"


def _shrink_for_debug(draft: Draft) -> None:
    """Two steps of two prompts: enough to see every part at work."""
    for key, most in DEBUG.items():
        value = draft.raw[key]
        already = isinstance(value, int) and 0 <= value <= most
        if _free(draft, key) and not already:
            draft.put(key, most, LAUNCHER)
    if not _free(draft, BATCH) and _free(draft, MINI):
        draft.reset(MINI)


def _free(draft: Draft, key: str) -> bool:
    return ours(draft.origins[key])

"""Keys that grpo.yaml does not list: whether verl knows them, how it is told, and the nearest when nobody does."""

from __future__ import annotations

import re
from collections.abc import Iterable

from grpo.flags import by_spelling, nearest
from grpo.values import defaults

# Names that older versions of verl read and that 0.9.1 ignores without a word, or no longer has (some of its examples
# still show them) -> what they are called now.
RENAMED = {
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward_manager.name": "reward.reward_manager.name",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.sandbox_fusion.url": "reward.sandbox_fusion.url",
    "sandbox_fusion.url": "reward.sandbox_fusion.url",
    "actor_rollout_ref.actor.checkpoint.contents": "actor_rollout_ref.actor.checkpoint.save_contents",
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "ray_init.num_cpus": "ray_kwargs.ray_init.num_cpus",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
}


def refused_by_verl(key: str, *, added: bool, likeness: float = 0.8) -> str | None:
    """Why a key that is not ours cannot go to verl either, or None.

    added: it may be new to verl (written +key or ++key, or in a file). likeness: of a known key beside it from which on
    a new one counts as misspelled.
    """
    if key in RENAMED:
        return f"is the name that an older verl had for it; write {RENAMED[key]}"
    from grpo.verl_backend.keys import verl_keys

    theirs = verl_keys()
    parents = [key[: match.start()] for match in re.finditer(r"\.", key)]
    group = any(known.startswith(key + ".") for known in theirs)
    if group or key in theirs or any(theirs.get(parent) == {} for parent in parents):
        return None
    known_group = bool(parents) and any(known.startswith(parents[0] + ".") for known in theirs)
    if added and known_group and _sibling(key, theirs, cutoff=likeness) is None:
        return None
    near = near_key(key, theirs)
    return "is no key of ours and none of verl's; " + (f"did you mean {near}?" if near else "--help WORD finds keys")


def near_key(key: str, theirs: Iterable[str] = ()) -> str | None:
    """The key, ours or verl's, that `key` was most likely meant to be; a flag's name leads to the flag."""
    if key in by_spelling():
        return f"--{key}"
    known = [*defaults(), *(name for name in theirs if name not in defaults())]
    exact = [name for name in known if name.endswith("." + key)]
    # Last names first: long common beginnings make all keys of a group look alike.
    if exact or (sibling := _sibling(key, known)):
        return exact[0] if exact else sibling
    endings = [name for name in known if name.endswith("." + key.rpartition(".")[2])]
    return nearest(key, endings) or next(iter(endings), None) or nearest(key, known)


def _sibling(key: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The key of the same group whose last name is most like this one's."""
    head, _, tail = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == head]
    near = nearest(tail, siblings, cutoff)
    return f"{head}.{near}" if near and head else near

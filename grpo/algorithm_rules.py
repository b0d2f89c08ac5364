"""What rules.py asks about the algorithm: parts that do not go together, and parts that have no effect beside others.

Whether an engine has them is the engine's own question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.config import Settings

ACTOR = "actor_rollout_ref.actor"
N, LENGTH = "actor_rollout_ref.rollout.n", "data.max_response_length"
ESTIMATOR, BY_STD, STD = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", "launcher.adv_std"
MODE, AGGREGATION = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.loss_agg_mode"
KL_IN_REWARD, KL_IN_LOSS, KL_CONTROL = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss", "algorithm.kl_ctrl.type"
FILTER, BUFFER = "algorithm.filter_groups.enable", "reward.reward_kwargs.overlong_buffer_cfg"
GDPO_KEYS, GDPO_WEIGHTS = "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"
REFERENCE, MIXUP = "launcher.update_ref_after", "launcher.ref_mixup"
OF_THE_LOSS = (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
OF_THE_REWARD = tuple(f"algorithm.kl_ctrl.{name}" for name in ("kl_coef", "target_kl", "horizon"))

DIVIDES_BY_STD = ("grpo", "grpo_vectorized", "grpo_passk", "gdpo")
CLIPS = ("vanilla", "gspo", "cispo", "geo_mean", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "bypass_mode")
Problem = str | tuple[str, Mapping[str, Any]]


def algorithm_problems(settings: Settings, *, own_reward: bool = False) -> Iterator[Problem]:
    """What cannot be; where one value would mend it, with that. own_reward: a function or a file of the user's."""
    if settings[ESTIMATOR] == "gdpo" and not own_reward and not settings["launcher.reward.names"]:
        yield f"{settings.said(ESTIMATOR)} compares several rewards one by one: name them, --reward accuracy,format"
    yield from _advantage(settings)
    yield from _kl(settings)
    if settings[MODE] == "sapo" and settings[AGGREGATION] != "seq-mean-token-mean":
        text = f"{settings.said(MODE)} is a mean over each response, then over responses: {AGGREGATION} must say so too"
        yield text, {AGGREGATION: "seq-mean-token-mean"}
    if settings[FILTER] and settings[N] == 1:
        yield (
            (
                f"{settings.said(FILTER)} keeps groups whose rewards differ, and with {settings.said(N)} none can; "
                "sample 2 or more"
            ),
            {N: 2},
        )
    if settings[f"{BUFFER}.enable"] and (settings[f"{BUFFER}.len"] or 0) > settings[LENGTH]:
        text = f"{settings.said(f'{BUFFER}.len')} is more than the whole response, {settings.said(LENGTH)}"
        yield text, {f"{BUFFER}.len": None}


def algorithm_warnings(settings: Settings) -> Iterator[str]:
    """What runs, but hardly as meant; one line each."""
    estimator, mode = settings[ESTIMATOR], settings[MODE]
    if settings.by_user(BY_STD) and settings[BY_STD] and estimator not in DIVIDES_BY_STD:
        yield f"{settings.said(BY_STD)} changes nothing: {estimator} does not divide by the group's deviation"
    if settings["algorithm.gamma"] != 1 and estimator not in ("reinforce_plus_plus", "remax"):
        yield f"{settings.said('algorithm.gamma')} changes nothing: {estimator} has one advantage for all tokens"
    clips = [f"{ACTOR}.{name}" for name in ("clip_ratio_low", "clip_ratio_high")]
    if mode not in CLIPS and (said := next((settings.said(key) for key in clips if settings.by_user(key)), None)):
        yield f"{said} changes nothing: {mode} clips no ratio"
    if mode == "gpg" and _updates_on_older_samples(settings):
        yield (
            f"{settings.said(MODE)} has no ratio, so it is exact only for one update per step: every further one takes "
            "the samples for its own"
        )
    if mode == "gspo" and settings[AGGREGATION] != "seq-mean-token-mean":
        yield f"{settings.said(MODE)} with {settings.said(AGGREGATION)}: GSPO's paper has seq-mean-token-mean"
    if settings[KL_IN_LOSS] and settings[f"{ACTOR}.kl_loss_type"] in ("kl", "k1"):
        key = f"{ACTOR}.kl_loss_type"
        yield f"{settings.said(key)}: in a loss its gradient does not know the reference; {settings[key]}+ pulls to it"
    yield from _kl_of_nothing(settings)
    if settings[KL_IN_LOSS] and settings[KL_IN_REWARD]:
        yield f"{settings.said(KL_IN_REWARD)} beside {settings.said(KL_IN_LOSS)}: the KL counts twice"
    if settings[MIXUP] != 1 and not settings[REFERENCE]:
        yield f"{settings.said(MIXUP)} changes nothing: {settings.said(REFERENCE)} leaves the reference where it is"


def _advantage(settings: Settings) -> Iterator[Problem]:
    estimator = settings[ESTIMATOR]
    if settings[STD] == "biased" and not (settings[BY_STD] and estimator in DIVIDES_BY_STD):
        why = f"{estimator} divides by none" if settings[BY_STD] else f"{settings.said(BY_STD)} divides by none"
        yield f"{settings.said(STD)} is about the group's standard deviation, and {why}", {STD: "unbiased"}
    keys, weights = settings[GDPO_KEYS] or [], settings[GDPO_WEIGHTS] or []
    if (keys or weights) and estimator != "gdpo":
        key = GDPO_KEYS if keys else GDPO_WEIGHTS
        yield f"{settings.said(key)} belongs to algorithm.adv_estimator=gdpo", {ESTIMATOR: "gdpo"}
    elif weights and len(weights) != len(keys):
        yield (
            f"{settings.said(GDPO_WEIGHTS)} has {len(weights)} weights for {len(keys)} parts; give one for each of "
            f"{GDPO_KEYS}"
        )
    if estimator == "gdpo" and settings[KL_IN_REWARD]:
        yield (
            (
                f"{settings.said(KL_IN_REWARD)}: gdpo compares the parts of the reward, of which the KL is none; "
                f"have it in the loss: {KL_IN_LOSS}=true"
            ),
            {KL_IN_REWARD: False},
        )


def _kl(settings: Settings) -> Iterator[Problem]:
    if settings[KL_CONTROL] == "adaptive" and not settings[KL_IN_REWARD]:
        text = f"{settings.said(KL_CONTROL)} steers the KL in the reward, and {settings.said(KL_IN_REWARD)}"
        yield f"{text}; set it to true", {KL_IN_REWARD: True}
    if settings[REFERENCE] and not (settings[KL_IN_REWARD] or settings[KL_IN_LOSS]):
        yield (
            f"{settings.said(REFERENCE)} moves a reference against which nothing is measured: set {KL_IN_LOSS}=true "
            f"or {KL_IN_REWARD}=true",
            {REFERENCE: 0},
        )


def _kl_of_nothing(settings: Settings) -> Iterator[str]:
    """A weight or a kind for a KL that is nowhere. A weight of 0 says that there is none."""
    for there, keys in ((KL_IN_LOSS, OF_THE_LOSS), (KL_IN_REWARD, OF_THE_REWARD)):
        asked = [key for key in keys if settings.by_user(key) and settings[key]]
        if asked and not settings[there]:
            yield f"{settings.said(asked[0])} changes nothing: {settings.said(there)}"
    steers = [key for key in OF_THE_REWARD[1:] if settings.by_user(key)]
    if steers and settings[KL_IN_REWARD] and settings[KL_CONTROL] != "adaptive":
        yield f"{settings.said(steers[0])} changes nothing: {settings.said(KL_CONTROL)}"


def _updates_on_older_samples(settings: Settings) -> bool:
    batch, mini = settings["data.train_batch_size"], settings[f"{ACTOR}.ppo_mini_batch_size"]
    return settings[f"{ACTOR}.ppo_epochs"] > 1 or mini < batch or settings["launcher.update_old_after"] > 1

"""What takes more than one option: KL, losses, schedules, LoRA, loggers. Batches: counting.py; rewards: rewarding.py.

A rule asks for options and yields answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpo.convert import counting, rewarding
from grpo.convert.conversion import Answer, Ask, Rule
from grpo.convert.tables import Text, as_text
from grpo.rules import LOGGERS

ACTOR, ROLLOUT, TRAINER = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer"
ENGINE, RANK, ALPHA, TARGETS = (
    "launcher.engine",
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.lora_alpha",
    "actor_rollout_ref.model.target_modules",
)
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"
_LEAST_RATE = 0.1  # of the learning rate, where cosine_with_min_lr ends when nobody says
KL_KINDS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def beta(ask: Ask) -> Iterator[Answer]:
    """The weight of the KL: in the loss (k3), or in the reward where ms-swift is told so; 0 drops the reference."""
    weight = ask.number("beta")
    if weight is None:
        weight = 0.04
    estimator = as_text(ask.value("advantage_estimator"))
    in_reward = ask.truth("kl_in_reward") if ask.value("kl_in_reward") is not None else estimator in _IN_REWARD
    if weight == 0:
        yield Answer({f"{ACTOR}.use_kl_loss": False}, Text("no_kl"))
    elif in_reward:
        yield Answer(_kl_in_reward(weight))
    else:
        yield Answer(_kl_in_loss(weight, "low_var_kl"))


_IN_REWARD = ("rloo", "reinforce_plus_plus")


def _kl_in_loss(weight: float, kind: str) -> dict[str, object]:
    return {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": weight, f"{ACTOR}.kl_loss_type": kind}


def _kl_in_reward(weight: float) -> dict[str, object]:
    return {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.kl_coef": weight,
        f"{ACTOR}.use_kl_loss": False,
    }


def paddle_kl(ask: Ask) -> Iterator[Answer]:
    """kl_coeff weighs the KL in the reward, kl_loss_coeff the KL in the loss; 0 leaves it out."""
    reward, loss = ask.number("kl_coeff") or 0.0, ask.number("kl_loss_coeff") or 0.0
    in_reward = {"algorithm.use_kl_in_reward": reward > 0} | ({"algorithm.kl_ctrl.kl_coef": reward} if reward else {})
    yield Answer(in_reward, options=("kl_coeff",))
    in_loss = {f"{ACTOR}.use_kl_loss": loss > 0} | ({f"{ACTOR}.kl_loss_coef": loss} if loss else {})
    yield Answer(in_loss, options=("kl_loss_coeff",))


def openrlhf_kl(ask: Ask) -> Iterator[Answer]:
    """init_kl_coef weighs it, use_kl_loss says where, kl_estimator how it is taken, kl_target makes it adaptive."""
    weight = ask.number("init_kl_coef") or 0.0
    kind = KL_KINDS.get(as_text(ask.value("kl_estimator")), "low_var_kl")
    if weight == 0:
        yield Answer({f"{ACTOR}.use_kl_loss": False}, Text("no_kl"))
    elif ask.truth("use_kl_loss"):
        yield Answer(_kl_in_loss(weight, kind), options=("init_kl_coef", "use_kl_loss", "kl_estimator"))
    else:
        settings = _kl_in_reward(weight) | {"algorithm.kl_penalty": kind}
        yield Answer(settings, options=("init_kl_coef", "use_kl_loss", "kl_estimator"))
        if ask.number("kl_target") is not None:
            target = {"algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.target_kl": ask.number("kl_target")}
            yield Answer(target, options=("kl_target",))


def loss_type(ask: Ask) -> Iterator[Answer]:
    """How token losses become one number; DrGRPO's constant is the longest response."""
    name = as_text(ask.value("loss_type"))
    modes = {"grpo": "seq-mean-token-mean", "bnpo": "token-mean", "dapo": "token-mean"}
    mode = f"{ACTOR}.loss_agg_mode"
    if name in modes:
        yield Answer({mode: modes[name]}, Text("bnpo") if name == "bnpo" else None)
    elif name == "dr_grpo":
        constant = ask.whole("max_completion_length") or 512
        yield Answer({mode: "seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor": constant})
    elif name in ("cispo", "sapo"):
        yield Answer({mode: "token-mean" if name == "cispo" else "seq-mean-token-mean", LOSS_MODE: name})
    else:
        yield Answer(
            why=Text("value_unknown", {"value": name, "known": "grpo, bnpo, dapo, dr_grpo, cispo, sapo"}), how="none"
        )


def schedule(ask: Ask) -> Iterator[Answer]:
    """constant and cosine are ours; linear becomes the nearest of them."""
    name = as_text(ask.value("lr_scheduler_type"))
    key, least = f"{ACTOR}.optim.lr_scheduler_type", f"{ACTOR}.optim.min_lr_ratio"
    extra = ask.value("lr_scheduler_kwargs")
    extra = extra if isinstance(extra, dict) else {}
    if name.startswith("constant"):
        yield Answer({key: "constant"})
    elif name == "cosine":
        yield Answer({key: "cosine"})
    elif name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr"):
        rate = ask.number("learning_rate") or ask.number("actor_learning_rate")
        ratio = ask.number("min_lr_ratio") or extra.get("min_lr_rate") or _LEAST_RATE
        if rate and "min_lr" in extra:
            ratio = float(extra["min_lr"]) / rate
        yield Answer({key: "cosine", least: ratio})
    elif name == "linear":
        yield Answer({key: "cosine"}, Text("linear"))
    else:
        yield Answer(why=Text("value_unknown", {"value": name, "known": "constant, cosine"}), how="none")


def betas(ask: Ask) -> Iterator[Answer]:
    """AdamW's two numbers."""
    pair = ask.value("adam_betas")
    pair = pair if isinstance(pair, list) else [ask.number("adam_beta1") or 0.9, ask.number("adam_beta2") or 0.999]
    yield Answer({f"{ACTOR}.optim.betas": [float(each) for each in pair]})


def top_k(ask: Ask) -> Iterator[Answer]:
    """0 or nothing means all there, -1 here."""
    number = ask.number("top_k")
    yield Answer({f"{ROLLOUT}.top_k": int(number) if number and number > 0 else -1})


def lora(ask: Ask) -> Iterator[Answer]:
    """LoRA where it is asked for; ms-swift uses it unless told `full`."""
    wanted = as_text(ask.value("train_type")) if ask.tool.name == "swift" else ""
    if not (wanted == "lora" or ask.truth("use_peft")):
        known = wanted in ("", "full")
        yield Answer(
            {RANK: 0} if known else {},
            None if known else Text("value_unknown", {"value": wanted, "known": "full, lora"}),
            "set" if known else "none",
        )
        return
    rank, alpha = ask.whole("lora_rank") or 16, ask.number("lora_alpha") or 32
    targets = ask.words("target_modules")
    modules = targets[0] if len(targets) == 1 else targets
    yield Answer({RANK: rank, ALPHA: int(alpha), TARGETS: modules or "all-linear"}, Text("lora"))


def sharding(ask: Ask) -> Iterator[Answer]:
    """DeepSpeed's stages and FSDP's: verl always shards all of it; what they keep in CPU memory is kept there."""
    text = str(ask.value("deepspeed") or ask.value("fsdp") or "").lower()
    if "offload" in text:
        parts = ("param_offload", "optimizer_offload")
        yield Answer({f"{ACTOR}.fsdp_config.{part}": True for part in parts}, Text("sharded"))
    elif text:
        yield Answer(why=Text("sharded"), how="always")


def services(ask: Ask) -> Iterator[Answer]:
    """Where metrics go; console and files always."""
    names = [as_text(name) for name in ask.words("report_to")]
    known = [name for name in names if name in LOGGERS]
    loggers = list(dict.fromkeys(["console", "file", *known]))
    strange = [name for name in names if name not in LOGGERS and name not in ("none", "all")]
    if "all" in names:
        yield Answer({f"{TRAINER}.logger": loggers}, Text("all_services"))
    elif strange:
        yield Answer({f"{TRAINER}.logger": loggers}, Text("other_services", {"names": ", ".join(strange)}))
    else:
        yield Answer({f"{TRAINER}.logger": loggers})


def openrlhf_services(ask: Ask) -> Iterator[Answer]:
    """use_wandb holds a key, use_tensorboard a folder: what they hold goes elsewhere."""
    loggers = ["console", "file", *(name for name in ("wandb", "tensorboard") if ask.value(f"use_{name}"))]
    yield Answer({f"{TRAINER}.logger": loggers}, Text("wandb_key") if ask.value("use_wandb") else None)


def data(ask: Ask) -> Iterator[Answer]:
    """One file or Hub name; several are to be joined first."""
    for name, key in (("dataset", "data.train_files"), ("val_dataset", "data.val_files")):
        option = ask.tool.options.get(name)
        words = ask.words(name) if option else []
        if words:
            why = Text("several_data", {"rest": " ".join(words[1:])}) if len(words) > 1 else None
            yield Answer({key: words[0]}, why, options=(option.name, *option.aliases) if option else None)


def vllm(ask: Ask) -> Iterator[Answer]:
    """vLLM samples on the verl engine; without it the embedded engine does."""
    if ask.truth("use_vllm"):
        yield Answer({ENGINE: "verl", f"{ROLLOUT}.name": "vllm"})
    else:
        yield Answer(why=Text("without_vllm"), how="always")


def sampled_evaluation(ask: Ask) -> Iterator[Answer]:
    """Several sampled responses to each evaluation prompt; ours is greedy unless told."""
    name = "num_generations_eval" if "num_generations_eval" in ask.tool.options else "eval_n_samples_per_prompt"
    number = ask.whole(name) or 1
    temperature = ask.number("eval_temperature") or ask.number("temperature") or 1.0
    settings = {"do_sample": True, "n": number, "temperature": temperature}
    yield Answer({f"{ROLLOUT}.val_kwargs.{key}": value for key, value in settings.items()})


def openrlhf_clip(ask: Ask) -> Iterator[Answer]:
    """One number for both sides, or two."""
    pair = ask.value("eps_clip_low_high")
    if isinstance(pair, list) and len(pair) == 2:
        settings = {f"{ACTOR}.clip_ratio_low": pair[0], f"{ACTOR}.clip_ratio_high": pair[1]}
        yield Answer(settings, options=("eps_clip_low_high",))
    else:
        yield Answer({f"{ACTOR}.clip_ratio": ask.number("eps_clip") or 0.2}, options=("eps_clip",))


def openrlhf_template(ask: Ask) -> Iterator[Answer]:
    """Without the flag a prompt is taken as it is written."""
    if ask.truth("apply_chat_template"):
        yield Answer(why=Text("template"), how="always")
    else:
        yield Answer({"actor_rollout_ref.model.custom_chat_template": "none"}, Text("as_written"))


def paddle_lengths(ask: Ask) -> Iterator[Answer]:
    """max_length has room for the longest prompt and response, or PaddleNLP refuses; ours is their sum."""
    room = ask.whole("max_length")
    longest = (ask.whole("max_prompt_len") or 0) + (ask.whole("max_dec_len") or 0)
    why = Text("lengths" if room and room >= longest else "too_short", {"room": room, "longest": longest})
    yield Answer(why=why, how="always" if room and room >= longest else "none")


def reference(ask: Ask) -> Iterator[Answer]:
    """A reference that follows the policy: every so many steps, and how far."""
    if ask.truth("sync_ref_model"):
        often, share = ask.whole("ref_model_sync_steps") or 512, ask.number("ref_model_mixup_alpha") or 0.6
        yield Answer({"launcher.update_ref_after": often, "launcher.ref_mixup": share})


def openrlhf_overlong(ask: Ask) -> Iterator[Answer]:
    """The punishment of responses that come near the longest is on where its length is given."""
    if (length := ask.whole("overlong_buffer_len")) is not None:
        part = "reward.reward_kwargs.overlong_buffer_cfg"
        factor = ask.number("overlong_penalty_factor") or 1.0
        yield Answer({f"{part}.enable": True, f"{part}.len": length, f"{part}.penalty_factor": factor})


def openrlhf_reward_clip(ask: Ask) -> Iterator[Answer]:
    """Two limits there, one for both sides here."""
    pair = ask.value("reward_clip_range")
    limits = [abs(float(limit)) for limit in pair] if isinstance(pair, list) else []
    if len(set(limits)) == 1:
        yield Answer({"launcher.clip_range_score": limits[0]})
    else:
        yield Answer(why=Text("uneven_clip"), how="none")


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        *(beta, paddle_kl, openrlhf_kl, loss_type, schedule, betas, top_k, lora, sharding, services),
        *(openrlhf_services, data, vllm, sampled_evaluation, openrlhf_clip, openrlhf_template, openrlhf_overlong),
        *(openrlhf_reward_clip, paddle_lengths, reference),
        *counting.RULES,
        *rewarding.RULES,
    )
}

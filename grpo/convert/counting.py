"""How many: GPUs, prompts and responses in a step, steps and epochs, from the ways that other tools count them.

There a batch counts responses on one GPU; here it counts prompts over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from grpo.convert.conversion import Answer, Ask, Outcome, Rule
from grpo.convert.tables import Text, as_text
from grpo.rules import BATCH, MICRO, MINI

ACTOR, TRAINER, ENGINE = "actor_rollout_ref.actor", "trainer", "launcher.engine"


def machine(ask: Ask, *, said: bool) -> Iterator[Outcome]:
    """GPUs and machines, and the engine that takes several. said: the user gave the number of GPUs."""
    file = ask.file
    if ask.tool.name == "openrlhf":  # has options for them
        return
    settings = {}
    if ask.gpus > 1:
        settings = {ENGINE: "verl", f"{TRAINER}.n_gpus_per_node": max(1, ask.gpus // file.nodes)}
        if file.nodes > 1:
            settings[f"{TRAINER}.nnodes"] = file.nodes
    if file.cards and file.gpus and file.cards > file.gpus:
        yield Outcome((), "set", settings, Text("spare_gpu", {"cards": file.cards, "gpus": file.gpus}))
    elif settings or said or file.gpus or file.cards:
        yield Outcome((), "set", settings, Text("gpus", {"gpus": ask.gpus}))
    else:
        yield Outcome((), "set", {}, Text("one_gpu"))


def batch(ask: Ask) -> Iterator[Answer]:
    """TRL and ms-swift: per_device x accumulation x GPUs, of completions (today) or of prompts (TRL to 0.14)."""
    n = ask.whole("num_generations") or 1
    per_device = ask.whole("per_device_train_batch_size") or 1
    share = per_device * ask.gpus
    accumulated = ask.whole("gradient_accumulation_steps") or max(1, math.ceil(16 / share))
    said = {"per_device": per_device, "steps": accumulated, "gpus": ask.gpus, "n": n}
    if ask.counts == "prompts":
        prompts = share * accumulated
        yield Answer({BATCH: prompts, MICRO: per_device * n}, Text("batch_prompts", said | {"prompts": prompts}))
        return
    update = share * accumulated
    sampled = ask.whole("generation_batch_size") or share * (ask.whole("steps_per_generation") or accumulated)
    sampled = max(sampled, update)  # an update over several samplings is one over their sum
    said |= {"total": update, "sampled": sampled, "prompts": math.ceil(update / n), "batch": math.ceil(sampled / n)}
    settings = {BATCH: said["batch"], MICRO: per_device}
    if update != sampled:
        settings[MINI] = said["prompts"]
    if update % n or sampled % n:
        yield Answer(settings, Text("batch_not_divided", said))
    else:
        yield Answer(settings, Text("batch_completions" if update == sampled else "batch_several", said))


def steps(ask: Ask) -> Iterator[Answer]:
    """TRL and ms-swift count optimizer steps; ours are rollouts, each with one or more of those."""
    updates = max(1, ask.settings.get(BATCH, 1) // ask.settings.get(MINI, ask.settings.get(BATCH, 1)))
    yield from _steps(ask, updates * (ask.whole("num_iterations") or 1))


def paddle_steps(ask: Ask) -> Iterator[Answer]:
    """PaddleNLP: a step is a rollout, as ours is."""
    yield from _steps(ask, 1)


def _steps(ask: Ask, updates: int) -> Iterator[Answer]:
    epochs, most = ask.number("num_train_epochs"), ask.number("max_steps")
    if most and most > 0:
        rollouts = math.ceil(most / updates)
        settings = {f"{TRAINER}.total_training_steps": rollouts, f"{TRAINER}.total_epochs": rollouts}
        said = {"most": int(most), "rollouts": rollouts, "updates": updates}
        yield Answer(settings, Text("max_steps", said), options=("max_steps", "num_train_epochs"))
    elif epochs and epochs > 0:
        why = None if epochs == int(epochs) else Text("part_epoch", {"epochs": epochs, "whole": math.ceil(epochs)})
        yield Answer({f"{TRAINER}.total_epochs": math.ceil(epochs)}, why, options=("num_train_epochs",))
    for name, key, strategies in (
        ("save_steps", f"{TRAINER}.save_freq", ("save_strategy",)),
        ("eval_steps", f"{TRAINER}.test_freq", ("eval_strategy", "evaluation_strategy", "do_eval")),
    ):
        mine = (name, *strategies)
        if not any(ask.tool.options.get(each) and ask.given(each) for each in mine):
            continue
        strategy = next((as_text(ask.value(each)) for each in strategies if ask.value(each) is not None), "steps")
        often = ask.number(name)
        if strategy in ("no", "false"):
            settings = {key: -1} if name == "save_steps" else {key: -1, f"{TRAINER}.val_before_train": False}
            yield Answer(settings, Text("only_at_the_end"), options=mine)
        elif strategy == "epoch" or (often is not None and 0 < often < 1):
            yield Answer(why=Text("per_epoch", {"key": key}), how="none", options=mine)
        elif often is not None and often < 1:
            yield Answer({key: -1}, Text("only_at_the_end"), options=mine)
        elif often is not None:
            why = Text("steps", {"often": int(often), "updates": updates}) if updates > 1 else None
            yield Answer({key: math.ceil(often / updates)}, why, options=mine)


def openrlhf_batch(ask: Ask) -> Iterator[Answer]:
    """rollout_batch_size counts prompts; train_batch_size counts responses of one optimizer step."""
    n = ask.whole("n_samples_per_prompt") or 1
    prompts, responses = ask.whole("rollout_batch_size") or 1024, ask.whole("train_batch_size") or 128
    mini = max(1, responses // n)
    said = {"responses": responses, "n": n, "mini": mini}
    settings = {BATCH: prompts, MINI: min(mini, prompts)}
    yield Answer(settings, Text("mini_batch", said), options=("rollout_batch_size", "train_batch_size"))
    if ask.truth("use_dynamic_batch"):
        tokens = ask.whole("train_max_tokens_per_gpu")
        dynamic = {f"{ACTOR}.use_dynamic_bsz": True} | (
            {f"{ACTOR}.ppo_max_token_len_per_gpu": tokens} if tokens else {}
        )
        yield Answer(dynamic, options=("use_dynamic_batch", "train_max_tokens_per_gpu"))
        yield Answer(why=Text("by_tokens"), how="always", options=("micro_train_batch_size",))
    else:
        micro = ask.whole("micro_train_batch_size") or 4
        yield Answer({MICRO: micro}, options=("micro_train_batch_size",))


def openrlhf_lengths(ask: Ask) -> Iterator[Answer]:
    """Prompt and response each have a limit; where only both together have, the prompt has what the response leaves."""
    response, together = ask.whole("generate_max_len") or 1024, ask.whole("max_len")
    prompt = ask.whole("prompt_max_len") or 1024
    if together and not ask.given("prompt_max_len"):
        prompt = max(1, together - response) if ask.given("generate_max_len") else together // 2
        response = response if ask.given("generate_max_len") else together - prompt
    yield Answer({"data.max_prompt_length": prompt, "data.max_response_length": response})


def openrlhf_machine(ask: Ask) -> Iterator[Answer]:
    """The actor's GPUs; all of them sample and train in turn."""
    nodes, gpus = ask.whole("actor_num_nodes") or 1, ask.whole("actor_num_gpus_per_node") or 8
    settings = {ENGINE: "verl", f"{TRAINER}.n_gpus_per_node": gpus, f"{TRAINER}.nnodes": nodes}
    yield Answer(settings, Text("one_pool"))


RULES: tuple[Rule, ...] = (batch, steps, paddle_steps, openrlhf_batch, openrlhf_lengths, openrlhf_machine)

"""Every rule that verl checks after it has started, or never, computed before: VERL's own asserts come minutes later.

Each refusal is one line with the nearest values that work, and the fix that --fix applies. Rules about one value alone
are grpo/rules.py's, those about batches shares.py's, those about the machine machine.py's; words that verl cannot read
are guard.py's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from grpo.engine import Refusal, Run
from grpo.verl_backend.checks.facts import TOKENIZER_FILES, Facts
from grpo.verl_backend.checks.machine import machine
from grpo.verl_backend.checks.shares import divisors, either, gpus_of, nearest, ranks, shares
from grpo.verl_backend.settings.effective import BATCH, MINI, ULYSSES, Effective, N, effective

MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
TP, DP, PP, EP = (f"{ROLLOUT}.{name}_parallel_size" for name in ("tensor_model", "data", "pipeline_model", "expert"))
PROMPT, RESPONSE, LONGEST = "data.max_prompt_length", "data.max_response_length", f"{ROLLOUT}.max_model_len"
RANK = f"{MODEL}.lora_rank"


def preflight(run: Run, facts: Facts) -> list[Refusal]:
    """Everything that would stop this run, or quietly make another run of it."""
    values = effective(run)
    rules = (_parallel, _heads, _ulysses, shares, _lengths)
    more = (_sampling, _separate, _lora, _model, _data, machine)
    return [refusal for rule in (*rules, *more) for refusal in rule(values, facts)]


def _parallel(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """verl/workers/engine_workers.py: init_model; workers/config/rollout.py."""
    if values[PP] > 1:
        yield Refusal(f"{values.said(PP)}: verl's rollout has no pipeline parallelism; take 1", {PP: 1})
    size = values[TP] * values[DP]
    if values[EP] > 1 and values[EP] != size:
        yield Refusal(
            f"{values.said(EP)} must be tensor x data parallel size = {size}, or 1; take {either({1, size})}",
            {EP: nearest([1, size], values[EP])[0]},
        )
    if values.gpus % size:
        fits = _tensor_sizes(values, facts)
        yield Refusal(
            f"{values.said(TP)} x data_parallel_size={values[DP]} does not divide {gpus_of(values)}; "
            f"tensor_model_parallel_size can be {_listed(fits)}",
            {TP: nearest(fits, values[TP])[0]} if fits else {},
        )


def _tensor_sizes(values: Effective, facts: Facts) -> list[int]:
    """Every tensor parallel size that these GPUs and this model allow."""
    per_replica = values.gpus // values[DP] if values.gpus % values[DP] == 0 else 0
    heads, kv_heads = _heads_of(facts)
    return [
        size
        for size in divisors(per_replica or 1)
        if per_replica and (not heads or (heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)))
    ]


def _heads_of(facts: Facts) -> tuple[int, int]:
    """(attention heads, key-value heads) of the model; 0 where that is not known."""
    heads = facts.sizes.get("num_attention_heads") or facts.sizes.get("n_head") or 0
    return heads, facts.sizes.get("num_key_value_heads") or heads


def _heads(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """vLLM gives each of the GPUs that share a model the same number of heads."""
    heads, kv_heads = _heads_of(facts)
    size = values[TP]
    if not heads or (heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)):
        return
    fits = _tensor_sizes(values, facts)
    yield Refusal(
        f"{values.said(TP)} does not divide the model's {heads} attention heads"
        + (f" ({kv_heads} for keys and values)" if kv_heads != heads else "")
        + f"; on {gpus_of(values)} it can be {_listed(fits)}",
        {TP: nearest(fits, size)[0]} if fits else {},
    )


def _ulysses(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """FSDPActorConfig.validate, and the mesh of GPUs."""
    size, padding = values.ulysses, f"{MODEL}.use_remove_padding"
    key = next(key for key in ULYSSES if values[key] == size)
    if size > 1 and not values[padding]:
        yield Refusal(f"{values.said(key)} shares sequences over GPUs, which needs {padding}=true", {padding: True})
    heads, _ = _heads_of(facts)
    fits = [number for number in divisors(values.gpus) if not heads or heads % number == 0]
    if size not in fits:
        by = f" and the model's {heads} attention heads" if heads else ""
        yield Refusal(
            f"{values.said(key)} must divide {gpus_of(values)}{by}; it can be {_listed(fits)}",
            {each: nearest(fits, size)[0] for each in ULYSSES if values[each] == size},
        )


def _lengths(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """vllm_async_server.py: _validate_configs; a longer response would be cut off without a word."""
    prompt, response, limit = values[PROMPT], values[RESPONSE], values[LONGEST]
    positions = facts.sizes.get("max_position_embeddings")
    positions = values[f"{MODEL}.override_config.max_position_embeddings"] or positions
    if limit is not None and positions and limit > positions:
        yield Refusal(f"{values.said(LONGEST)} is more than the model's {positions} positions", {LONGEST: positions})
    room = min(number for number in (limit, positions, prompt + response) if number)
    if room < prompt + response:
        what = f"the model's {room} positions" if room == positions else values.said(LONGEST)
        left = room - prompt
        todo = f"take max_response_length={left} or less" if left > 0 else "the prompts alone fill it"
        yield Refusal(
            f"{values.said(PROMPT)} and {values.said(RESPONSE)} are more than {what}; {todo}",
            {RESPONSE: left} if left > 0 else {},
        )


def _sampling(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """workers/config/rollout.py; sync was the default up to 0.6."""
    mode = f"{ROLLOUT}.mode"
    if values[mode] != "async":
        yield Refusal(f"{values.said(mode)}: verl samples asynchronously only since 0.7.0; leave it out", {mode: None})


def _separate(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """trainer_separate_async.py: GPUs of their own for sampling."""
    if values["trainer.v1.trainer_mode"] != "separate_async":
        return
    sync, nodes = "trainer.v1.separate_async.parameter_sync_step", f"{ROLLOUT}.nnodes"
    backend = f"{ROLLOUT}.checkpoint_engine.backend"
    wanted = values[sync] * values[MINI]
    if values[BATCH] != wanted:
        yield Refusal(
            f"{values.said(BATCH)} must be parameter_sync_step x ppo_mini_batch_size = {wanted} under separate_async",
            {BATCH: wanted, MINI: values[MINI]},
        )
    if values[nodes] < 1:
        yield Refusal(
            f"{values.said(nodes)}: separate_async samples on machines of its own; take 1 or more", {nodes: 1}
        )
    if values[backend] == "naive":
        yield Refusal(f"{values.said(backend)}: separate_async needs nccl, nixl or mooncake", {backend: "nccl"})


def _lora(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """vllm_rollout/utils.py: get_vllm_max_lora_rank rounds a rank up to one of vLLM's."""
    most = max(facts.lora_ranks)
    if values[RANK] > most and values[f"{ROLLOUT}.name"] == "vllm":
        listed = ", ".join(map(str, facts.lora_ranks))
        yield Refusal(f"{values.said(RANK)} is above vLLM's largest; it has room for {listed}", {RANK: most})


def _model(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """workers/config/model.py, and what a prompt of messages needs."""
    said, template = values.said(f"{MODEL}.path"), f"{MODEL}.custom_chat_template"
    if facts.unreadable:
        yield Refusal(f"{said}: its JSON files cannot be read ({facts.unreadable}); copy the model folder again")
    if facts.model is not None:
        names = facts.model.get("architectures") or []
        if len(names) != 1:
            have = ", ".join(names) or "none"
            yield Refusal(
                f'{said}: config.json must name one architecture, it has {have}; write "architectures": [...]'
            )
        if facts.model.get("is_encoder_decoder"):
            yield Refusal(
                f"{said} is an encoder-decoder model ({', '.join(names)}), which verl cannot train; "
                "use --engine embedded"
            )
    own_tokenizer = facts.files is not None and values[f"{MODEL}.tokenizer_path"] is None
    if own_tokenizer and not (facts.files or frozenset()).intersection(TOKENIZER_FILES):
        yield Refusal(f"{said} has no tokenizer; name one with {MODEL}.tokenizer_path=PATH")
    elif facts.chat_template is False and values[template] is None:
        yield Refusal(
            f"{said}: the tokenizer has no chat template; {template}=plain takes the messages' text as it is, "
            "or give a Jinja template",
            {template: "plain"},
        )


def _data(values: Effective, facts: Facts) -> Iterator[Refusal]:
    """trainer_base.py: no step in an epoch is a division by zero; the val loader's batch is the whole file."""
    if facts.prompts is not None and facts.prompts < values[BATCH]:
        unit = ranks(values) // math.gcd(values[N], ranks(values))
        most = facts.prompts // unit * unit
        todo = f"take {most} or less" if most else f"{unit} or more are needed on {gpus_of(values)}"
        text = f"{values.said(BATCH)} is more than the {facts.prompts} prompts to train on; {todo}"
        yield Refusal(text, {BATCH: most} if most else {})
    if facts.val_prompts == 0:
        yield Refusal("data.val_files holds no prompts, and verl cannot go without; --val_data names a file with some")


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none: change the number of GPUs"

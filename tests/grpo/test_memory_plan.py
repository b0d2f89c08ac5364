"""Bytes and seconds of a plan against numbers worked out by hand; what each knob saves; the largest batch that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grpo import flags
from grpo.config import ConfigError
from grpo.memory import advice, constants, machine, on_embedded, on_verl, planning, seconds, table
from grpo.memory.job import Job, job_of
from grpo.memory.planning import Asked
from grpo.resolve import resolve

WEIGHTS = 7_615_616_512  # of Qwen2.5-7B


def job(*words: str, engine: str = "verl", memory: int | None = 80 * 10**9, **numbers: Any) -> Job:
    """Qwen2.5-7B on eight GPUs unless `words` say otherwise: prompts of 512, five responses of 1,024."""
    line = ["--data", "p.json", "--model", "Qwen/Qwen2.5-7B", "--n_gpus", "8" if engine == "verl" else "1", *words]
    settings = resolve(flags.parse(line), {}).settings()
    device = "gpu" if engine == "verl" else "cpu"
    return replace(job_of(settings, engine=engine, device=device, memory=memory, bfloat16=engine == "verl"), **numbers)


def small(*words: str, **numbers: Any) -> Job:
    """A model of two layers on the embedded engine, whose bytes fit on a page."""
    model = ["--model", "scratch", "launcher.scratch.hidden_size=8", "launcher.scratch.num_layers=2"]
    lengths = ["--max_prompt_length", "10", "--max_response_length", "6", "--rollout_n", "4", "--train_batch_size", "3"]
    return job(*model, "launcher.scratch.num_heads=2", *lengths, *words, engine="embedded", memory=10**10, **numbers)


def parts(job: Job, phase: str) -> dict[str, int]:
    return next(dict(one.parts) for one in advice.phases_of(job) if one.name == phase)


def test_a_gpu_under_fsdp_holds_its_share_of_weights_gradients_and_adam_in_float32():
    """S2-32: 4 bytes a weight, 4 for its gradient, 8 for AdamW, over eight GPUs; in the update, all at once."""
    update = parts(job(), "update")
    assert update["weights"] == 4 * WEIGHTS // 8 == 3_807_808_256
    assert update["gradients"] == 4 * WEIGHTS // 8
    assert update["AdamW"] == 8 * WEIGHTS // 8 == 7_615_616_512
    # whole on the GPU, in bfloat16: embedding and output layer, 152064 x 3584 each, and 2 of 28 layers
    ends, layers = 2 * 2 * 152_064 * 3_584, 2 * 2 * (WEIGHTS - 2 * 152_064 * 3_584) // 28
    assert update["gathered weights"] == ends + layers
    assert update["logits"] == 16_384 * 152_064 * 8


def test_gradient_checkpointing_keeps_the_inputs_of_the_layers_and_one_layer():
    # bfloat16, 16,384 tokens: 28 inputs of 3,584; one layer with 6 hidden, 4 query, 2 key and 4 inner widths kept, and
    # gradients of 2 hidden, 2 query, 1 key and 2 inner widths on their way through it
    one = 6 * 3_584 + 4 * 3_584 + 2 * 512 + 4 * 18_944
    passing = 2 * 3_584 + 2 * 3_584 + 512 + 2 * 18_944
    with_it = parts(job(), "update")["activations"]
    assert with_it == 2 * 16_384 * (28 * 3_584 + one + passing)
    without = parts(job("actor_rollout_ref.model.enable_gradient_checkpointing=false"), "update")["activations"]
    assert without == 2 * 16_384 * (28 * one + passing)


def test_both_offloads_make_room_for_sampling_and_none_for_the_update():
    """verl brings weights and AdamW back for the update (engine/base.py: BaseEngineCtx)."""
    plain, offloaded = job(), job("actor_rollout_ref.actor.fsdp_config.optimizer_offload=true")
    both = replace(offloaded, param_offload=True)
    phases = [{phase.name: phase.bytes for phase in advice.phases_of(one)} for one in (plain, offloaded, both)]
    assert phases[0]["update"] == phases[1]["update"] == phases[2]["update"]
    assert phases[0]["rollout"] - phases[1]["rollout"] == 8 * WEIGHTS // 8
    assert phases[1]["rollout"] - phases[2]["rollout"] == 4 * WEIGHTS // 8
    assert phases[0]["log-prob"] - phases[1]["log-prob"] == 8 * WEIGHTS // 8
    assert on_verl.host_bytes(both)["AdamW"] == 8 * WEIGHTS  # all eight shares on one machine
    assert on_verl.host_bytes(replace(both, per_node=4))["weights"] == 4 * WEIGHTS // 2


def test_vllm_takes_its_share_and_says_how_many_responses_have_room():
    # a token of Qwen2.5-7B: keys and values of 512 in 28 layers, bfloat16: 57,344 bytes; a response of 1,536 of them
    plain = job()
    assert on_verl.cache_per_token(plain) == 57_344
    assert parts(plain, "rollout")["vLLM"] == 40 * 10**9
    room = 40 * 10**9 - 2 * WEIGHTS - constants.VLLM_ACTIVATIONS
    assert on_verl.responses_at_once(plain) == room // (1_536 * 57_344) == 256
    two = job("actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    assert (on_verl.vllm_weights(two), on_verl.cache_per_token(two)) == (WEIGHTS, 28_672)
    assert on_verl.vllm_lacks(plain) == 0
    tight = job("actor_rollout_ref.rollout.gpu_memory_utilization=0.2")  # 16 GB for 15.2 GB of weights
    assert on_verl.vllm_lacks(tight) == 2 * WEIGHTS + constants.VLLM_ACTIVATIONS + 1_536 * 57_344 - 16 * 10**9
    assert advice.missing(tight) > 0


def test_lora_trains_an_adapter_and_keeps_the_weights():
    """S2-32: no gradients and no AdamW of the weights under it."""
    update = parts(job("--lora_rank", "8"), "update")
    assert update["weights"] == 4 * (WEIGHTS + 20_185_088) // 8
    assert (update["AdamW"], update["gradients"]) == (20_185_088, 10_092_544)


def test_a_sequence_or_a_batch_that_is_shared_takes_its_part():
    assert on_verl.micro_tokens(job()) == 16_384
    # 8 prompts x 5 responses of 1,536 tokens on 8 GPUs are 7,680 tokens each
    assert on_verl.micro_tokens(job("--train_batch_size", "8")) == 7_680
    counted = job("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2")
    assert on_verl.micro_tokens(counted) == 2 * 1_536
    shared = job("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "--train_batch_size", "8")
    assert on_verl.micro_tokens(shared) == 7_680  # twice the responses, half of each
    assert job("actor_rollout_ref.actor.fsdp_config.fsdp_size=4").shards == 4


def test_the_embedded_engine_holds_all_of_it_in_one_place():
    """S2-32: float32 weights, the reference, gradients and AdamW of 8 x 258 + 2 x 1096 + 8 weights."""
    one = small()
    # a layer, h = 8: q, k, v 3 x (64 + 8), o 64, MLP 3 x 8 x 32, two norms
    weights = 258 * 8 + 2 * (3 * 72 + 64 + 768 + 16) + 8
    assert one.shape.weights == weights
    save = parts(one, "save")
    assert save == {
        "process": constants.PROCESS["cpu"],
        "weights": 4 * weights,
        "reference": 4 * weights,
        "AdamW": 8 * weights,
    }
    assert "log-prob" not in {phase.name for phase in advice.phases_of(replace(one, reference=False))}
    assert "reference" not in parts(replace(one, lora=100), "save")
    assert parts(replace(one, lora=100, weight_bytes=0.5), "save")["weights"] == weights // 2 + 400
    assert parts(replace(one, old=True), "save")["older policy"] == 4 * weights


def test_a_prompts_keys_are_kept_once_for_its_group_where_decoding_is_written_out():
    # 3 prompts of 10 and 12 responses of 6 tokens; keys and values of 8 numbers in 2 layers, 4 bytes each
    one = small()
    token = 2 * 2 * 8 * 4
    assert parts(one, "rollout")["KV cache"] == (3 * 10 + 12 * 6) * token
    assert parts(one, "rollout")["weights laid out to decode"] == 0  # 6 steps do not repay it
    assert parts(replace(one, response_tokens=15), "rollout")["weights laid out to decode"] == 0
    assert parts(replace(one, response_tokens=16), "rollout")["weights laid out to decode"] == 4 * one.shape.used
    other = replace(one, shape=replace(one.shape, family="gpt2"))
    assert parts(other, "rollout")["KV cache"] == 12 * (10 + 6) * token
    fewer = replace(one, rows=7)  # one group at a time
    assert parts(fewer, "rollout")["KV cache"] == (10 + 4 * 6) * token


def test_lanes_have_gradients_laid_out_weights_and_micro_batches_of_their_own():
    one = small("--max_response_length", "16")
    two = replace(one, threads=2)
    assert (on_embedded.lanes(one), on_embedded.lanes(two)) == (1, 2)
    assert parts(two, "update")["gradients"] == 2 * parts(one, "update")["gradients"] == 2 * 4 * one.shape.weights
    assert parts(two, "rollout")["weights laid out to decode"] == 2 * 4 * one.shape.used
    assert parts(two, "rollout")["KV cache"] == parts(one, "rollout")["KV cache"], "of as many responses"
    # one alone holds all three groups; two hold two and one at once, which is as much
    assert on_embedded.micro_batch(two) == on_embedded.micro_batch(one)
    # a group has 10 + 4 x 16 = 74 tokens; of 80 in all, two lanes have 40 each: (40 - 10) // 16 responses
    tight = replace(two, micro_tokens=80)
    assert on_embedded.micro_batch(replace(tight, threads=1)) == on_embedded.Cut(1, 10 + 4 * 15, 1 + 4 * 15)
    assert on_embedded.micro_batch(tight) == on_embedded.Cut(2, 2 * (10 + 15), 2 * (1 + 15))
    for other in ({"lora": 9}, {"width": 2}, {"device": "gpu"}, {"checkpointing": True}, {"mini_prompts": 1}):
        assert on_embedded.lanes(replace(two, **other)) == 1, other


def test_a_micro_batch_is_whole_groups_or_a_part_of_a_large_one():
    # a group: 10 + 4 x 6 = 34 tokens; in the row the last token of a response is left out, and each group's prompt has
    # one row before its first answer
    one = small(micro_tokens=70)
    assert on_embedded.micro_batch(one) == on_embedded.Cut(groups=2, tokens=2 * (10 + 4 * 5), rows=2 * (1 + 4 * 5))
    assert on_embedded.micro_batch(replace(one, micro_tokens=33)) == on_embedded.Cut(1, 10 + 3 * 5, 1 + 3 * 5)
    assert on_embedded.micro_batch(replace(one, micro_tokens=1)) == on_embedded.Cut(1, 15, 6)
    assert on_embedded.micro_batch(replace(one, micro_rows=8)).groups == 2
    assert on_embedded.micro_batch(replace(one, micro_rows=2)).tokens == 10 + 2 * 5
    assert on_embedded.micro_batch(replace(one, micro_tokens=10**6)).groups == 3  # there are no more


def test_each_knob_is_one_that_saves_and_what_costs_least_comes_first():
    found = {saving.knob.name: saving for saving in advice.savings(job())}
    names = [name.rpartition(".")[2] for name in found]
    assert names == [
        "ppo_max_token_len_per_gpu", "gpu_memory_utilization", "optimizer_offload", "param_offload", "--n_gpus",
        "--lora_rank",
    ]  # fmt: skip
    tokens = found[advice.TOKENS]
    assert (tokens.knob.words, tokens.phase) == (f"{advice.TOKENS}=8192", "update")
    assert tokens.saves == 8_192 * 152_064 * 8 + parts(job(), "update")["activations"] // 2
    assert found["actor_rollout_ref.rollout.gpu_memory_utilization"].saves == 8 * 10**9


def test_where_it_does_not_fit_no_knob_is_turned_that_is_not_needed():
    two = job("--n_gpus", "2")
    lacking = {phase.name for phase in advice.phases_of(two) if phase.bytes > 76 * 10**9}
    assert lacking == {"rollout", "update"}
    knobs, after = advice.until_it_fits(two)
    assert [knob.words for knob in knobs] == ["--n_gpus 4"]
    assert advice.missing(after) == 0
    knobs, after = advice.until_it_fits(two, more_gpus=False)
    assert [knob.words for knob in knobs] == ["--lora_rank 16"]
    assert advice.missing(after) == 0
    assert advice.until_it_fits(job()) == ([], job())
    # Turned one after the other, vLLM's share would sink below its weights before LoRA's turn comes, which is enough.
    one = job("--n_gpus", "1")
    ways = [advice.until_it_fits(one, more_gpus=more) for more in (False, True)]
    assert [[knob.words for knob in knobs] for knobs, _ in ways] == [["--lora_rank 16"], ["--n_gpus 4"]]
    assert [advice.missing(after) for _, after in ways] == [0, 0]


def test_the_largest_micro_batch_fits_and_one_token_more_does_not():
    one = job()
    most = advice.largest(one)[advice.TOKENS]
    assert advice.missing(replace(one, micro_tokens=most)) == 0
    assert advice.missing(replace(one, micro_tokens=most + 1)) > 0
    assert advice.largest(job("--n_gpus", "1")) == {advice.TOKENS: 0}  # not even one response
    assert advice.largest(replace(one, memory=None)) == {}
    assert advice.largest(small())[advice.ROWS] == 12  # all of them


def test_flops_count_each_prompt_once_and_each_response_token_three_times():
    """S1-24. Rollout and reference forward, update forward and twice that backward; nothing for padding."""
    one = small(mean_prompt=10, mean_response=6)
    inside, head = one.shape.used - 258 * 8, 258 * 8
    attention = 4 * 8 * 2 * (30 * 5 + 72 * (10 + 3))
    once = 2 * inside * (30 + 72) + 2 * head * 72 + attention
    assert seconds.flops_of(one) == {"rollout": once, "log-prob": once, "update": 3 * once}
    assert seconds.flops_of(replace(one, checkpointing=True))["update"] == 4 * once


def test_the_time_of_a_step_is_the_probes_times_as_often_as_they_happen():
    """S1-24. 3 prompts of 10 tokens, 12 responses of 6, all side by side."""
    line = seconds.Line(0.1, 0.2, 0.001)  # with 2 layers and 258 words: 0.758 s
    few = seconds.Line(0.1, 0.1, 0.001)  # 0.558 s for two lines: 0.458 for a step and 0.05 for each line
    probed = seconds.Probed(line, 15, line, 6, few, 2, line, line, 51, 1e-6, 1e9, 1e9)
    one = small()
    got = seconds.embedded_seconds(one, probed)
    assert got.phases["rollout"] == pytest.approx(0.758 * 30 / 15 + 5 * (0.458 + 0.05 * 12))
    assert got.phases["log-prob"] == pytest.approx(0.758 * 102 / 51)
    assert got.phases["update"] == pytest.approx(0.758 * 2 + one.shape.weights * 1e-6)
    # two rounds of eight responses
    assert seconds.embedded_seconds(replace(one, rows=8, prompts=4), probed).phases["rollout"] == pytest.approx(
        0.758 * 40 / 15 + 2 * 5 * (0.458 + 0.05 * 8)
    )
    half = seconds.embedded_seconds(replace(one, mean_response=3), probed)  # one still runs to the end
    assert half.phases["rollout"] == pytest.approx(0.758 * 30 / 15 + 5 * (0.458 + 0.05 * 6))
    # Two rounds of eight that are three tokens long on average: the second begins where half of the first is done.
    two = seconds.embedded_seconds(replace(one, rows=8, prompts=4, mean_response=3), probed).phases["rollout"]
    steps = 6 + 3 / 0.75
    assert two == pytest.approx(0.758 * 40 / 15 + (steps - 2) * (0.458 + 0.05 * 16 * 3 / steps))
    alone = replace(probed, decode_few=line, few_lines=6)  # nothing tells the parts of a step apart
    assert alone.decoding(one.shape, 3) == pytest.approx(0.758 / 2)


def test_verls_time_follows_from_a_cards_peak_numbers_and_says_that_it_is_assumed():
    """S1-24. Eight H100 of 989 TFLOP/s, 40 % of it: 1,280 responses of 1,536 tokens, 4 forwards' work an update."""
    got = seconds.verl_seconds(job(), "H100")
    shape = job().shape
    once = 1_280 * 1_536 * (2 * shape.used + 4 * 3_584 * 28 * 768)
    assert got.phases["update"] == pytest.approx(4 * once / (8 * 989e12 * 0.4))
    assert got.phases["log-prob"] == pytest.approx(2 * once / (8 * 989e12 * 0.4))
    # 160 responses on each GPU: 1,024 steps that read weights and half-grown caches at half of 3.35 TB/s
    step = (2 * WEIGHTS + 160 * 1_024 * 57_344) / (3.35e12 * 0.5)
    assert got.phases["rollout"] == pytest.approx(1_024 * step)
    assert got.source.startswith("ASSUMED, not measured: 40% of 989 TFLOP/s")


def test_memory_and_cards_are_read_as_people_write_them():
    assert machine.read_bytes("80GB") == machine.read_bytes("80 g") == 80 * 10**9
    assert machine.read_bytes("1.5GiB") == 3 * 2**29
    assert machine.card_of("NVIDIA H100 80GB HBM3") == "H100"
    assert machine.card_of("NVIDIA A100-SXM4-80GB") == "A100"
    assert machine.card_of("NVIDIA GeForce RTX 4090") == "4090"
    assert machine.card_of("Tesla T4") is None
    for text in ("much", "80XB", "0", "1.2.3GB"):
        with pytest.raises(ConfigError, match="not an amount of memory; write --memory 80GB"):
            machine.read_bytes(text)
    with pytest.raises(ConfigError, match="--gpu T4: no peak numbers are known of it; known are B200, H200"):
        machine.read_card("T4")


def test_sizes_and_times_are_written_for_people():
    sizes = (15.23e9, 1.04e9, 0.94e9, 13e6)
    assert [table.size(number) for number in sizes] == ["15.2 GB", "1.0 GB", "940 MB", "13 MB"]
    times = (0.45, 12.3, 210, 3600 * 29, 86400 * 6)
    assert [table.duration(number) for number in times] == ["0.45 s", "12 s", "3.5 min", "29 h", "6.0 days"]


def test_the_lines_of_a_plan():
    settings = resolve(flags.parse(["--data", "p.json", "--model", "Qwen/Qwen2.5-7B", "--n_gpus", "2"]), {}).settings()
    lines = planning.short(planning.plan(settings, "verl", Asked(memory=80 * 10**9)))
    assert lines[0] == "Qwen/Qwen2.5-7B: 7.62B weights (qwen2)"
    assert lines[1].split("  ")[0] == "GB on each GPU"
    assert lines[1].endswith("save, 80.0 GB (given with --memory)")
    assert any(line.split() == ["gradients", "-", "-", "-", "15.23", "-"] for line in lines)
    assert any("DOES NOT FIT; rollout lacks 11.8 GB; update lacks " in line for line in lines)
    assert any(line.startswith("fits with --lora_rank 16 (at most ") for line in lines)
    with pytest.raises(ConfigError, match="verl on the CPU is for debugging"):
        planning.plan(resolve(flags.parse(["--data", "p.json", "--device", "cpu"]), {}).settings(), "verl", Asked())
    unknown = resolve(flags.parse(["--data", "p.json", "--model", "no/such"]), {}).settings()
    (line,) = planning.dry_run_lines(unknown, "verl")
    assert line.startswith("not planned: --model no/such: its size is not known without its config.json")


def test_without_the_gpus_memory_there_is_no_verdict_and_the_way_to_one():
    lines = planning.short(planning.Planned(job(memory=None), "a model", "memory not known", None))
    (line,) = [line for line in lines if line.startswith("at most ")]
    assert line.endswith(
        "; the GPUs' memory is not known: ./train.sh plan with --memory 80GB or --gpu H100 tells whether it fits"
    )


@pytest.mark.skipif(machine.gpu_here() is not None, reason="a machine with a GPU trains there")
def test_a_dry_run_for_several_processes_of_this_cpu_names_the_engine_for_gpus():
    words = ["--data", "p.json", "--model", "Qwen/Qwen2.5-7B", "--n_gpus", "8"]
    assert planning.dry_run_lines(resolve(flags.parse(words), {}).settings(), "embedded")[-1] == planning.ELSEWHERE
    meant = resolve(flags.parse([*words, "--device", "cpu"]), {}).settings()
    assert planning.ELSEWHERE not in planning.dry_run_lines(meant, "embedded")


def test_processes_of_one_machine_share_its_memory_and_the_prompts():
    alone, four = (job("--n_gpus", n, engine="embedded", memory=100 * 10**9) for n in ("1", "4"))
    assert (alone.memory, four.memory) == (100 * 10**9, 25 * 10**9)
    assert (alone.prompts, four.prompts) == (256, 64)

"""Each rule that verl checks too late (VERL.md 3.3), broken: our line about it, and the fix, which breaks no rule.

The numbers: 4 GPUs unless said, 5 responses to a prompt, batches of 256 prompts.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from grpo import overrides as command_line
from grpo.config import Draft
from grpo.engine import Refusal, Run
from grpo.verl_backend.checks import facts as facts_of
from grpo.verl_backend.checks.facts import Facts
from grpo.verl_backend.checks.machine import checkpoint_bytes
from grpo.verl_backend.checks.preflight import preflight
from grpo.verl_backend.checks.shares import divisors, multiples_near, nearest
from grpo.verl_backend.settings.effective import effective

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
MINI, MICRO = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
BATCH, TP, GPUS = "data.train_batch_size", f"{ROLLOUT}.tensor_model_parallel_size", "trainer.n_gpus_per_node"
COUNTED = f"{ACTOR}.use_dynamic_bsz=false"
QWEN = {  # Qwen2.5-0.5B's config.json, in part
    "architectures": ["Qwen2ForCausalLM"],
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
}


def draft_of(*words: str) -> Draft:
    draft = Draft()
    command_line.apply(draft, [f"{MODEL}.path=/m", f"{GPUS}=4", *words])
    return draft


def run_of(draft: Draft, out: Path = Path("/out")) -> Run:
    settings = draft.settings()
    return Run(settings.config(), settings.origins, out, out / "t", out / "v", passthrough=settings.passthrough)


def refused(*words: str, **facts: Any) -> list[Refusal]:
    return preflight(run_of(draft_of(*words)), Facts(**facts))


def only(*words: str, **facts: Any) -> Refusal:
    """The one refusal; its fix, laid over the same words, leaves none."""
    (refusal,) = refused(*words, **facts)
    if refusal.fix:
        draft = draft_of(*words)
        for key, value in refusal.fix.items():
            if value is None and key in draft.passthrough:
                del draft.passthrough[key]
            else:
                draft.key(key, value, "flag --fix")
        assert preflight(run_of(draft), Facts(**facts)) == []
    return refusal


@pytest.mark.slow
def test_the_defaults_break_no_rule():
    assert refused() == []
    assert refused(model=QWEN, files=frozenset({"tokenizer.json"}), chat_template=True, gpus=4, prompts=256) == []
    assert refused(COUNTED, f"{MICRO}=4") == []  # 256 x 5 / 4 = 320 responses


@pytest.mark.slow
def test_a_batch_that_the_gpus_cannot_share_evenly():
    # 250 x 5 = 1250 = 4 x 312.5; 5 and 4 share no factor, so prompts come in fours
    assert only(f"{BATCH}=250") == Refusal(
        "data.train_batch_size=250 (override) x rollout.n=5 cannot be shared evenly by 4 GPUs; take 248 or 252",
        {BATCH: 248},
    )
    assert only(f"{BATCH}=3").fix == {BATCH: 4}
    assert refused(f"{BATCH}=250", f"{ROLLOUT}.n=4") == []  # 250 x 4 = 4 x 250
    assert only(f"{BATCH}=251", f"{ROLLOUT}.n=2").fix == {BATCH: 250}
    assert only(f"{BATCH}=100", "trainer.nnodes=9", f"{GPUS}=8").fix == {BATCH: 72}  # 72 GPUs; S0-37


@pytest.mark.slow
def test_a_mini_batch_that_the_ranks_cannot_share_evenly():
    # 6 x 5 = 30 on 4 GPUs; 4 and 12 divide 48 and are multiples of 4, 8 is nearer than both
    refusal = only(f"{BATCH}=48", f"{MINI}=6")
    assert refusal.text.startswith(f"{MINI}=6 (override) x rollout.n=5 cannot be shared evenly by 4 GPUs; take 4 or 8")
    assert refusal.fix == {MINI: 4}


def test_a_batch_smaller_than_a_mini_batch():
    refusal = only(f"{BATCH}=8", f"{MINI}=16")
    assert refusal == Refusal(f"{MINI}=16 (override) is more than {BATCH}=8 (override); take 8 or less", {MINI: 8})


@pytest.mark.slow
def test_without_dynamic_micro_batches_the_gpus_count_even_where_two_share_a_sequence():
    two = f"{ACTOR}.ulysses_sequence_parallel_size=2"
    # 2 ranks: 250 x 5 = 1250 = 2 x 625, but not 4 x 312.5
    assert refused(f"{BATCH}=250", two) == []
    assert [refusal.fix for refusal in refused(f"{BATCH}=250", two, COUNTED, f"{MICRO}=5")] == [{BATCH: 248}]


@pytest.mark.slow
def test_a_micro_batch_that_does_not_divide_a_gpus_share():
    # 256 x 5 / 4 = 320 responses on each GPU: 5 and 8 divide it, 6 and 7 do not
    refusals = refused(COUNTED, f"{MICRO}=7")
    assert refusals[0] == Refusal(
        f"{MICRO}=7 (override) does not divide a GPU's 320 responses; take 5 or 8", {MICRO: 8}
    )
    assert only(COUNTED, f"{MICRO}=4", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=3").fix == {
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 2
    }
    missing = only(COUNTED, f"{MICRO}=4", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=null")
    assert "use_dynamic_bsz is off, so say how many responses go at once" in missing.text


@pytest.mark.slow
def test_the_deprecated_counts_over_all_gpus():
    """Two rows of VERL.md 3.3: verl parses these, and dies later of a bare assert."""
    refusal = only(f"{ACTOR}.ppo_micro_batch_size=16")
    assert refusal.text == (
        f"{ACTOR}.ppo_micro_batch_size=16 (override) counts over all 4 GPUs, which verl no longer does; write {MICRO}=4"
    )
    assert refusal.fix == {f"{ACTOR}.ppo_micro_batch_size": None, MICRO: 4, f"{ACTOR}.use_dynamic_bsz": False}
    of_rollout = only(COUNTED, f"{MICRO}=4", f"{ROLLOUT}.log_prob_micro_batch_size=8")
    assert of_rollout.text.endswith(f"write {ROLLOUT}.log_prob_micro_batch_size_per_gpu=2")
    assert only(COUNTED, f"{MICRO}=4", "actor_rollout_ref.ref.log_prob_micro_batch_size=2").text.endswith("_per_gpu=1")


@pytest.mark.slow
def test_gpus_that_the_rollout_cannot_part_into_replicas():
    refusal = only(f"{TP}=3", f"{GPUS}=8")
    assert refusal == Refusal(
        f"{TP}=3 (override) x data_parallel_size=1 does not divide 8 GPUs; "
        "tensor_model_parallel_size can be 1, 2, 4, 8",
        {TP: 2},
    )
    assert only(f"{TP}=4", f"{ROLLOUT}.data_parallel_size=2").text.endswith("can be 1, 2")
    assert only(f"{ROLLOUT}.pipeline_model_parallel_size=2").fix == {f"{ROLLOUT}.pipeline_model_parallel_size": 1}
    experts = only(f"{TP}=2", f"{ROLLOUT}.expert_parallel_size=4")
    assert experts.text.endswith("must be tensor x data parallel size = 2, or 1; take 1 or 2")


@pytest.mark.slow
def test_heads_that_tensor_parallelism_cannot_part():
    refusal = only(f"{TP}=4", model=QWEN)  # 14 heads: 1 and 2 divide them and 4 GPUs
    assert refusal == Refusal(
        f"{TP}=4 (override) does not divide the model's 14 attention heads (2 for keys and values); "
        "on 4 GPUs it can be 1, 2",
        {TP: 2},
    )
    many = {"architectures": ["A"], "text_config": {"num_attention_heads": 32}}
    assert refused(f"{TP}=4", model=many) == []
    # 4 divides 12 heads, but 3 heads of keys and values are neither shared by 4 GPUs nor parted by 2
    grouped = {"architectures": ["A"], "num_attention_heads": 12, "num_key_value_heads": 3}
    assert only(f"{TP}=4", model=grouped).text.endswith("(3 for keys and values); on 4 GPUs it can be 1")


def test_a_well_known_model_of_the_hub_is_judged_without_its_folder():
    def of(name: str) -> dict[str, Any]:
        return facts_of.of_files(run_of(draft_of(f"{MODEL}.path={name}")))

    seven = ("Qwen/Qwen2.5-7B", f"{GPUS}=8", f"{MODEL}.path=Qwen/Qwen2.5-7B")
    assert only(*seven[1:], f"{TP}=8", **of(seven[0])) == Refusal(
        f"{TP}=8 (override) does not divide the model's 28 attention heads (4 for keys and values); "
        "on 8 GPUs it can be 1, 2, 4",
        {TP: 4},
    )
    apart = refused(*seven[1:], f"{TP}=3", **of(seven[0]))
    assert apart[0].text.endswith("tensor_model_parallel_size can be 1, 2, 4")  # and not 8
    math = of("Qwen/Qwen2.5-Math-7B-Instruct")  # of 4096 positions: 4096 - 512 = 3584
    assert only("data.max_response_length=4096", **math).fix == {"data.max_response_length": 3584}
    assert of("someone/unheard-of") == {}


@pytest.mark.slow
def test_a_model_length_beyond_the_models_positions():
    refusal = only(f"{ROLLOUT}.max_model_len=40000", model=QWEN)
    assert refusal == Refusal(
        f"{ROLLOUT}.max_model_len=40000 (override) is more than the model's 32768 positions",
        {f"{ROLLOUT}.max_model_len": 32768},
    )


@pytest.mark.slow
def test_prompt_and_response_beyond_what_the_model_can_hold():
    small = QWEN | {"max_position_embeddings": 2048}
    refusal = only("data.max_response_length=2000", model=small)  # 512 + 2000 > 2048; 2048 - 512 = 1536
    assert refusal.text == (
        "data.max_prompt_length=512 (verl) and data.max_response_length=2000 (override) are more than the model's 2048 "
        "positions; take max_response_length=1536 or less"
    ).replace("(verl)", "(default)")
    assert refusal.fix == {"data.max_response_length": 1536}
    assert only(f"{ROLLOUT}.max_model_len=1000").fix == {"data.max_response_length": 488}  # 1000 - 512
    assert refused("data.max_prompt_length=4096", model=small)[0].text.endswith("the prompts alone fill it")
    longer = f"+{MODEL}.override_config.max_position_embeddings=4096"
    assert refused("data.max_response_length=2000", longer, model=small) == []


@pytest.mark.slow
def test_the_two_switches_of_dynamic_batches_must_agree():
    key = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    assert only(f"{key}=false") == Refusal(
        f"{key}=false (override) must be the same as {ACTOR}.use_dynamic_bsz=true (default)", {key: True}
    )


@pytest.mark.slow
def test_a_micro_batch_of_tokens_holds_at_least_one_sequence():
    refusal = only(f"{ACTOR}.ppo_max_token_len_per_gpu=1000")  # 512 + 1024
    assert refusal.fix == {f"{ACTOR}.ppo_max_token_len_per_gpu": 1536}
    assert refused(f"{ACTOR}.ppo_max_token_len_per_gpu=1000", f"{ACTOR}.ulysses_sequence_parallel_size=2") == []


@pytest.mark.slow
def test_shared_sequences_need_unpadded_ones():
    size, padding = f"{ACTOR}.ulysses_sequence_parallel_size", f"{MODEL}.use_remove_padding"
    assert only(f"{size}=2", f"{padding}=false") == Refusal(
        f"{size}=2 (override) shares sequences over GPUs, which needs {padding}=true", {padding: True}
    )
    assert only(f"{size}=3").fix == {size: 2}
    assert only(f"{size}=4", model=QWEN).text.endswith("the model's 14 attention heads; it can be 1, 2")
    assert refused(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2") == []


def test_a_synchronous_rollout_is_gone():
    key = f"{ROLLOUT}.mode"
    assert only(f"{key}=sync") == Refusal(
        f"{key}=sync (override): verl samples asynchronously only since 0.7.0; leave it out", {key: None}
    )


@pytest.mark.slow
def test_a_lora_rank_above_vllms_list():
    refusal = only(f"{MODEL}.lora_rank=600")
    assert refusal.text.endswith("is above vLLM's largest; it has room for 1, 8, 16, 32, 64, 128, 256, 320, 512")
    assert refusal.fix == {f"{MODEL}.lora_rank": 512}
    assert refused(f"{MODEL}.lora_rank=24") == []  # verl takes the next of the list
    assert only(f"{MODEL}.lora_rank=100", lora_ranks=(8, 64)).fix == {f"{MODEL}.lora_rank": 64}


@pytest.mark.parametrize(("names", "has"), [([], "none"), (["A", "B"], "A, B"), (None, "none")])
def test_exactly_one_architecture(names: list[str] | None, has: str):
    assert f"config.json must name one architecture, it has {has};" in only(model={"architectures": names}).text


@pytest.mark.slow
def test_a_model_folder_without_tokenizer_chat_template_or_readable_json():
    assert "has no tokenizer; name one with" in only(files=frozenset({"config.json"})).text
    assert refused(f"{MODEL}.tokenizer_path=/t", files=frozenset({"config.json"})) == []
    template = only(files=frozenset({"config.json", "tokenizer.json"}), chat_template=False)
    assert template.fix == {f"{MODEL}.custom_chat_template": "plain"}
    assert "its JSON files cannot be read (line 3)" in only(unreadable="line 3").text


@pytest.mark.slow
def test_fewer_prompts_than_a_batch():
    """V1: a division by zero after the model is loaded; V0: "Train dataloader is empty!"."""
    refusal = only(prompts=103)
    assert refusal == Refusal(
        "data.train_batch_size=256 (default) is more than the 103 prompts to train on; take 100 or less", {BATCH: 100}
    )
    assert only(prompts=3).text.endswith("4 or more are needed on 4 GPUs")
    assert "--val_data names a file with some" in only(val_prompts=0).text


@pytest.mark.slow
def test_separate_asynchronous_training_has_rules_of_its_own():
    mode = "trainer.v1.trainer_mode=separate_async"
    texts = [refusal.text for refusal in refused(mode, f"{MINI}=32")]
    assert texts == [
        "data.train_batch_size=256 (default) must be parameter_sync_step x ppo_mini_batch_size = 128 "
        "under separate_async",
        f"{ROLLOUT}.nnodes=0 (verl): separate_async samples on machines of its own; take 1 or more",
        f"{ROLLOUT}.checkpoint_engine.backend=naive (verl): separate_async needs nccl, nixl or mooncake",
    ]
    right = (f"{MINI}=64", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.checkpoint_engine.backend=nccl")
    assert refused(mode, *right) == []


@pytest.mark.slow
def test_more_gpus_than_there_are():
    assert only(f"{GPUS}=8", gpus=4) == Refusal(
        f"{GPUS}=8 (override): this machine shows 4; take 4 or fewer, or see CUDA_VISIBLE_DEVICES", {GPUS: 4}
    )
    assert "no NVIDIA GPU is visible here" in only(gpus=0).text
    assert refused("trainer.device=cpu", gpus=0) == []
    for there in ("launcher.ray_address='head:6379'", "+ray_kwargs.ray_init.address='head:6379'"):
        assert refused(there, gpus=0) == []  # they are elsewhere


@pytest.mark.slow
def test_an_older_ray_and_torchrun():
    """PEERS.md 4, row 33: stuck at ray.init, or inside torchrun."""
    key = "ray_kwargs.ray_init.address"
    assert only(f"+{key}=auto", ray=("10.0.0.1:6379", "/tmp/ray/ray_current_cluster")) == Refusal(
        "an older Ray session at 10.0.0.1:6379 (from /tmp/ray/ray_current_cluster) would be joined, and one that has "
        f"ended waited for; +{key}=local starts a new one, --ray_address 10.0.0.1:6379 joins it on purpose",
        {key: "local"},
    )
    assert refused("launcher.ray_address='h:1'", ray=("h:1", "RAY_ADDRESS")) == []
    assert only(torchrun=("RANK", "WORLD_SIZE")).text.startswith("RANK, WORLD_SIZE in the environment: torchrun has")


def test_a_port_in_use_is_answered_with_a_free_one():
    key = "ray_kwargs.ray_init.dashboard_port"
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = run_of(draft_of(f"+{key}={port}"))
        busy = facts_of.of_machine(run, {})["busy_ports"]
    assert busy[key][0] == port
    (refusal,) = preflight(run, Facts(busy_ports=busy))
    assert refusal.text == f"{key}={port}: the port is in use on this machine; {busy[key][1]} is free"
    assert refusal.fix == {key: busy[key][1]}


@pytest.mark.slow
def test_the_disk_must_hold_the_checkpoints():
    values = effective(run_of(draft_of()))
    # 1e9 parameters: 4 bytes of weights, 8 of AdamW, 4 of the Hugging Face copy
    assert checkpoint_bytes(values, 10**9) == 16 * 10**9
    # two are kept and a third is written before one goes: 48 GB
    assert refused(parameters=10**9, disk=48 * 10**9) == []
    refusal = only(parameters=10**9, disk=40 * 10**9)
    assert refusal.text == (
        "40.0 GB free for checkpoints of 16.0 GB; trainer.max_actor_ckpt_to_keep=2 (default) needs 48.0 GB: take "
        "trainer.max_actor_ckpt_to_keep=1"
    )
    assert refusal.fix == {"trainer.max_actor_ckpt_to_keep": 1}
    assert only(parameters=10**9, disk=10**9).text.endswith("free some, or put --output_dir elsewhere")
    # of an adapter there is no optimizer state to speak of: 8 bytes each, 24 GB
    assert refused(f"{MODEL}.lora_rank=8", parameters=10**9, disk=24 * 10**9) == []


@pytest.mark.slow
def test_shared_memory_that_is_too_small():
    small = 64 * 2**20
    assert "--shm-size=10g or --ipc=host" in only(shared_memory=small).text
    assert refused(f"{GPUS}=1", shared_memory=small) == []
    on_cpu = only("trainer.device=cpu", shared_memory=small, parameters=10**8)
    assert on_cpu.fix == {f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 32}
    assert refused("trainer.device=cpu", shared_memory=small, parameters=10**6) == []  # 4 MB of weights


def test_an_encoder_decoder_model_is_refused_by_its_name():
    t5 = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    text = only(model=t5).text
    assert "is an encoder-decoder model (T5ForConditionalGeneration), which verl cannot train" in text
    assert text.endswith("use --engine embedded")


def test_what_is_wrong_with_the_environment_is_passed_on():
    assert (
        only(broken=("TransferQueue is missing: pip install ...",)).text == "TransferQueue is missing: pip install ..."
    )


def test_the_facts_of_a_model_folder(tmp_path: Path):
    run = run_of(draft_of(f"{MODEL}.path={tmp_path}"))
    assert facts_of.of_files(run) == {}
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"torch_dtype": "bfloat16"}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    found = Facts(**facts_of.of_files(run))
    assert found.model is not None
    assert found.model["num_attention_heads"] == 14
    assert (found.chat_template, found.parameters) == (False, 1000)
    assert found.files == {"config.json", "tokenizer_config.json", "model.safetensors"}
    (tmp_path / "chat_template.jinja").touch()
    assert Facts(**facts_of.of_files(run)).chat_template is True
    (tmp_path / "config.json").write_text("{")
    assert facts_of.of_files(run)["unreadable"].startswith("Expecting property name")


def test_the_facts_of_a_machine(tmp_path: Path):
    run = run_of(draft_of(), tmp_path / "not" / "there")
    found = Facts(**facts_of.of_machine(run, {"RANK": "0", "WORLD_SIZE": "2", "RAY_ADDRESS": "h:1"}))
    assert found.torchrun == ("RANK", "WORLD_SIZE")
    assert found.ray == ("h:1", "RAY_ADDRESS")
    assert found.disk is not None
    assert found.disk > 0
    assert Facts(**facts_of.of_machine(run, {"RAY_TMPDIR": str(tmp_path)})).ray is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert facts_of.of_machine(run, {"RAY_TMPDIR": str(tmp_path)})["ray"][0] == "10.0.0.1:6379"


def test_the_lora_ranks_are_read_from_vllms_source(tmp_path: Path):
    assert facts_of.lora_ranks(tmp_path) == facts_of.LORA_RANKS
    source = tmp_path / "vllm" / "config" / "lora.py"
    source.parent.mkdir(parents=True)
    source.write_text("MaxLoRARanks = Literal[1, 8, 24]\n")
    assert facts_of.lora_ranks(tmp_path) == (1, 8, 24)


def test_the_values_that_verl_will_have_are_ours_and_the_users_over_its_own():
    values = effective(run_of(draft_of(f"{ROLLOUT}.data_parallel_size=2", "~trainer.ray_wait_register_center_timeout")))
    assert values[f"{ROLLOUT}.data_parallel_size"] == 2
    assert values[f"{ROLLOUT}.n"] == 5  # ours
    assert values[f"{ROLLOUT}.response_length"] == 1024  # verl's reference to ours
    assert values["trainer.critic_warmup"] == 0  # verl's own
    assert "trainer.ray_wait_register_center_timeout" not in values.values


def test_the_numbers_next_to_a_wish():
    assert nearest([1, 2, 4, 8], 7) == [8, 4]
    assert nearest([1, 2], 9) == [2]
    assert multiples_near(8, 100) == [96, 104]
    assert multiples_near(8, 3) == [8]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]

"""Run files of other tools with the values that the requirements name, and the way from one to a plan of ours."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from grpo.__main__ import main

# S0: PaddleNLP's grpo_argument.yaml, every option that the requirements name, with the values they name.
PADDLE = """
rl_algorithm: grpo
actor_model_name_or_path: Qwen/Qwen2.5-7B-Instruct-1M
reward_model_name_or_path: ""
use_rm_server: true
reward_server: "http://127.0.0.1:8731"
logging_dir: vdl_log
logging_steps: 1
output_dir: kk-grpo
report_to: tensorboard
wandb_http_proxy: "http://127.0.0.1:8962"
run_name: kk-grpo-run
train_datasets: 34567ppl/train.jsonl
eval_datasets: 5ppl/test.jsonl
prompt_key: src
response_key: tgt
dataloader_drop_last: true
balance_batch: true
use_remove_padding: true
tensor_parallel_degree: 2
sequence_parallel: true
sharding_parallel_degree: 1
sharding: stage2
sharding_parallel_config: enable_release_grads
pipeline_parallel_degree: 1
virtual_pp_degree: 1
max_prompt_len: 512
max_dec_len: 4096
min_dec_len: 32
max_length: 4609
top_p: 1.0
temperature: 0.7
repetition_penalty: 1.0
rollout_max_num_seqs: 24
rollout_quant_type: weight_only_int8
seed: 42
global_batch_size: 2
global_mini_batch_size: 2
rollout_n: 8
update_iters: 1
per_device_logprob_batch_size: 8
per_device_reward_batch_size: 8
per_device_value_batch_size: 8
per_device_train_batch_size: 8
num_train_epochs: 3
max_steps: 3600
learning_rate: 5e-7
lr_scheduler_type: constant
weight_decay: 1e-2
adam_beta1: 0.9
adam_beta2: 0.999
adam_epsilon: 1e-8
max_grad_norm: 1.0
save_steps: 300
ignore_save_lr_and_optim: true
kl_coeff: 0.0
kl_loss_coeff: 0.0
pg_loss_coeff: 1.0
entropy_coeff: 0.0
clip_range_ratio: 0.2
clip_range_ratio_low: 0.2
clip_range_ratio_high: 0.2
clip_range_score: 10.0
clip_range_value: 5.0
normalize_reward: true
normalize_advantage: true
use_fp32_compute: false
do_eval: true
per_device_eval_batch_size: 32
evaluation_strategy: steps
eval_steps: 20
use_flash_attention: false
use_fused_rms_norm: true
recompute: true
recompute_granularity: full
bf16: true
fp16_opt_level: O2
amp_custom_black_list: "reduce_sum sin cos"
amp_custom_white_list: "matmul flash_attn"
dynamic_sampling: false
max_gen_batches: 2
enable_overlong_reward_buffer: false
overlong_reward_buffer: 256
overlong_penalty_factor: 1.0
offload_level: freeze_model
offload_optim: false
"""

# S3: ms-swift's two commands.
SWIFT_8_GPUS = """
# one GPU is kept for vLLM
nproc_per_node=7
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\
NPROC_PER_NODE=$nproc_per_node \\
swift rlhf \\
    --rlhf_type grpo \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --external_plugins plugin.py \\
    --reward_funcs accuracy format cosine repetition \\
    --cosine_min_len_value_wrong 0.0 --cosine_max_len_value_wrong -0.5 \\
    --cosine_min_len_value_correct 1.0 --cosine_max_len_value_correct 0.5 --cosine_max_len 2048 \\
    --repetition_n_grams 3 --repetition_max_penalty -1.0 \\
    --reward_weights 1 0.2 0.5 0.5 \\
    --use_vllm true \\
    --vllm_device auto \\
    --vllm_gpu_memory_utilization 0.7 \\
    --vllm_max_model_len 8192 \\
    --train_type full \\
    --torch_dtype bfloat16 \\
    --dataset 'AI-MO/NuminaMath-TIR#5000' \\
    --max_completion_length 2048 \\
    --num_train_epochs 1 \\
    --per_device_train_batch_size 1 \\
    --per_device_eval_batch_size 1 \\
    --learning_rate 1e-6 \\
    --gradient_accumulation_steps 2 \\
    --eval_steps 100 \\
    --save_steps 100 \\
    --save_total_limit 2 \\
    --logging_steps 5 \\
    --max_length 4096 \\
    --output_dir output \\
    --warmup_ratio 0.05 \\
    --dataloader_num_workers 4 \\
    --dataset_num_proc 4 \\
    --num_generations 7 \\
    --temperature 0.9 \\
    --system prompt.txt \\
    --ds3_gather_for_generation true \\
    --log_completions true \\
    --deepspeed zero2
"""
SWIFT_LORA = """
CUDA_VISIBLE_DEVICES=0 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --reward_funcs accuracy \\
    --use_vllm true --train_type lora --lora_rank 8 --lora_alpha 32 --target_modules all-linear \\
    --dataset 'AI-MO/NuminaMath-TIR#5000' --max_length 2048 --per_device_train_batch_size 4 \\
    --gradient_accumulation_steps 1 --num_generations 4 --learning_rate 1e-5
"""

# S1: the parameters of a trainer for encoder-decoder models.
SEQ2SEQ = """
@dataclass
class GRPOArguments:
    update_old_after: int = 1000
    group_size: int = 5
    grpo_epsilon: float = 0.1
    grpo_beta: float = 0.04

model.generate(max_new_tokens=128, do_sample=True, num_return_sequences=5, num_beams=5)
loader = DataLoader(train, batch_size=8, num_workers=0)
"""


def script_of(file: Path, text: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What convert-config prints for `text` written to `file`."""
    file.write_text(text, encoding="utf-8")
    assert main(["convert-config", str(file), "--lang", "en", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def words_of(script: str) -> list[str]:
    """The words that the printed script gives to ./train.sh."""
    return shlex.split(re.sub(r"\\\n", " ", script), comments=True)[1:]


def planned(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Key -> value of the plan that --dry_run=json makes of the words."""
    assert main([*words, "--dry_run=json"]) == 0, capsys.readouterr().err
    return {key: entry["value"] for key, entry in json.loads(capsys.readouterr().out)["values"].items()}

"""Every metric: plain name, verl's name, unit, meaning, and what healthy looks like.

docs/metrics.md, the report, the verdicts and both engines take it from here. Leaves out how a value is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    verl:    the name under which verl logs the same number; None where verl logs none
    band:    healthy from .. to, where a number can say it
    normal:  what is normal although it looks wrong; "" where nothing does
    curve:   drawn in the report
    """

    name: str
    verl: str | None
    unit: str
    label: str
    label_zh: str
    meaning: str
    meaning_zh: str
    healthy: str
    healthy_zh: str
    normal: str = ""
    normal_zh: str = ""
    band: tuple[float, float] | None = None
    curve: bool = True


TABLE: tuple[Metric, ...] = (
    Metric(
        "step", "training/global_step", "steps", "step", "步",
        "rollout + update, counted from 1; 0 is the evaluation before the first step",
        "一次采样加一次更新，从 1 开始；0 是第一步之前的评估",
        "", "", curve=False,
    ),
    Metric(
        "epoch", "training/epoch", "passes", "epoch", "轮",
        "which pass over the prompts, counted from 0", "第几次遍历提示，从 0 开始",
        "", "", curve=False,
    ),
    Metric(
        "reward_mean", "critic/rewards/mean", "reward", "reward, mean", "奖励均值",
        "mean reward of the step's responses", "本步所有回答的平均奖励",
        "keeps rising", "持续上升",
        "single steps go up and down: each step sees other prompts", "单步上下波动：每步的提示不同",
    ),
    Metric(
        "reward_std", None, "reward", "reward, std within a group", "组内奖励标准差",
        "standard deviation of the rewards within a group (unbiased), mean over the groups",
        "同一提示的一组回答的奖励标准差（无偏），再对各组取平均",
        "slowly falling", "缓慢下降",
        "it rises at first when nearly every response was wrong, and ends near 0 when nearly every one is right",
        "几乎全错时先上升；几乎全对时最后接近 0",
    ),
    Metric(
        "reward/NAME", None, "reward", "reward, one part", "奖励分量",
        "mean of one named part of the reward, when it returns several",
        "奖励函数返回多个分量时，其中一个的均值",
        "the parts that you want rise", "希望提高的分量上升", curve=False,
    ),
    Metric(
        "kl_loss", "actor/kl_loss", "nats per token", "KL to the reference", "与参考模型的 KL",
        "how far the policy has moved from the reference model, before kl_loss_coef is applied",
        "策略偏离参考模型的程度，未乘 kl_loss_coef",
        "0.001 to 0.1", "0.001 到 0.1",
        "0 on the first step, where policy and reference are the same", "第一步为 0：此时策略与参考模型相同",
        band=(0.001, 0.1),
    ),
    Metric(
        "reward_kl", "actor/reward_kl_penalty", "nats per token", "KL in the reward", "奖励中的 KL",
        "how far the policy has moved from the reference model, where the KL is subtracted from the reward "
        "(algorithm.use_kl_in_reward)",
        "把 KL 从奖励中扣除时（algorithm.use_kl_in_reward），策略偏离参考模型的程度",
        "0.001 to 0.1", "0.001 到 0.1",
        "0 on the first step, where policy and reference are the same", "第一步为 0：此时策略与参考模型相同",
        band=(0.001, 0.1),
    ),
    Metric(
        "reward_kl_coef", "actor/reward_kl_penalty_coeff", "", "weight of the KL in the reward", "奖励中 KL 的权重",
        "algorithm.kl_ctrl.kl_coef, as the step used it", "本步使用的 algorithm.kl_ctrl.kl_coef",
        "constant, or with kl_ctrl.type=adaptive moving until reward_kl is near target_kl",
        "恒定；kl_ctrl.type=adaptive 时变化到 reward_kl 接近 target_kl 为止",
    ),
    Metric(
        "policy_loss", "actor/pg_loss", "", "policy loss", "策略损失",
        "the clipped policy-gradient loss that is minimised, without the KL term",
        "被最小化的裁剪策略梯度损失，不含 KL 项",
        "falls, with noise", "带噪声地下降",
        "near 0 all the time, of either sign: advantages of a group sum to 0, so this is not a measure of success",
        "始终接近 0，可正可负：一组的优势之和为 0，因此它不衡量成败",
    ),
    Metric(
        "response_length", "response_length/mean", "tokens", "response length", "回答长度",
        "mean number of tokens of a response, stop token included", "回答的平均 token 数，含结束符",
        "stable", "稳定",
        "it grows while a model learns to reason, as long as the reward grows with it",
        "模型学习推理时会变长，只要奖励同时上升",
    ),
    Metric(
        "response_clip_fraction", "response_length/clip_ratio", "share", "responses cut at the limit",
        "被截断的回答比例",
        "share of responses that reached data.max_response_length before they ended",
        "在结束前达到 data.max_response_length 的回答比例",
        "below 0.1", "低于 0.1",
        band=(0.0, 0.1),
    ),
    Metric(
        "entropy", "actor/entropy", "nats per token", "entropy", "熵",
        "how undecided the policy is about the next token", "策略对下一个 token 的不确定程度",
        "falls slowly and stays above 0", "缓慢下降，保持大于 0",
        "near 0 on short answers that the model knows", "短而已掌握的答案上接近 0",
    ),
    Metric(
        "clip_fraction", "actor/pg_clipfrac", "share", "clipped tokens", "被裁剪的 token 比例",
        "share of response tokens whose ratio was clipped", "概率比被裁剪的 token 比例",
        "below 0.2", "低于 0.2",
        "exactly 0 with one update per step (ppo_epochs 1, mini-batch = batch): the ratio is 1 then",
        "每步只更新一次时恒为 0（ppo_epochs 为 1，小批次等于批次）：此时概率比为 1",
        band=(0.0, 0.2),
    ),
    Metric(
        "clip_fraction_lower", "actor/pg_clipfrac_lower", "share", "tokens held by the dual clip",
        "被双重裁剪限制的 token 比例",
        "share of response tokens of bad responses whose loss actor.clip_ratio_c bounded",
        "坏回答中损失被 actor.clip_ratio_c 限制的 token 比例",
        "near 0", "接近 0",
        "exactly 0 with one update per step", "每步只更新一次时恒为 0",
    ),
    Metric(
        "grad_norm", "actor/grad_norm", "", "gradient norm", "梯度范数",
        "norm of the gradient before it is clipped at actor.optim.clip_grad",
        "按 actor.optim.clip_grad 裁剪之前的梯度范数",
        "finite, without lasting growth", "有限，且不持续增长",
        "single spikes: they are clipped", "偶尔的尖峰：会被裁剪",
    ),
    Metric(
        "lr", "actor/lr", "", "learning rate", "学习率",
        "learning rate of the step's last update", "本步最后一次更新的学习率",
        "as scheduled", "符合调度",
    ),
    Metric(
        "zero_std_fraction", None, "share", "groups without signal", "无信号的组比例",
        "share of groups whose responses all got the same reward, so that they teach nothing",
        "所有回答奖励相同、因而不提供学习信号的组的比例",
        "below 0.8", "低于 0.8",
        "it grows to 1 when nearly every prompt is solved", "几乎所有提示都解出时增长到 1",
        band=(0.0, 0.8),
    ),
    Metric(
        "generated_batches", None, "batches", "batches sampled for a step", "一步采样的批次数",
        "batches of prompts that dynamic sampling took to fill the step (algorithm.filter_groups)",
        "动态采样为填满一步所采样的提示批次数（algorithm.filter_groups）",
        "stable", "稳定",
        "it grows when nearly every prompt is solved, or none: fewer groups have a signal",
        "几乎所有提示都已解出或都解不出时会增长：有信号的组变少",
    ),
    Metric(
        "overlong_penalty", None, "reward", "penalty for length", "过长惩罚",
        "what responses near data.max_response_length lost, mean over the step's responses "
        "(reward.reward_kwargs.overlong_buffer_cfg)",
        "接近 data.max_response_length 的回答被扣的分，按本步回答取平均（reward.reward_kwargs.overlong_buffer_cfg）",
        "rises to 0", "上升到 0",
    ),
    Metric(
        "reward/errors", None, "calls", "failed reward calls", "奖励函数失败次数",
        "reward calls of the step that failed; their responses are left out of the update",
        "本步失败的奖励调用次数；对应的回答不参与更新",
        "0", "0",
        band=(0.0, 0.0),
    ),
    Metric(
        "val_accuracy", None, "share", "accuracy on kept prompts", "验证准确率",
        "share of the evaluation prompts, never trained on, whose response got a reward of at least 1",
        "未参与训练的验证提示中，回答奖励不低于 1 的比例",
        "rises", "上升",
    ),
    Metric(
        "val_reward_mean", None, "reward", "reward on kept prompts", "验证奖励均值",
        "mean reward on the evaluation prompts; verl logs it for each source, as val-core/SOURCE/reward/mean@1",
        "验证提示上的平均奖励；verl 按来源记录，名为 val-core/来源/reward/mean@1",
        "rises", "上升",
    ),
    Metric(
        "loss", "train/loss", "nats per token", "loss of imitation (SFT)", "模仿损失（SFT）",
        "mean negative log-probability of the demonstrations' response tokens, in ./train.sh sft",
        "./train.sh sft 中示范回答 token 的平均负对数概率",
        "falls", "下降",
        "single steps go up and down: each step sees other demonstrations", "单步上下波动：每步的示范不同",
    ),
    Metric(
        "val_loss", "val/loss", "nats per token", "loss on kept demonstrations (SFT)", "验证损失（SFT）",
        "the same on demonstrations that are not trained on", "未参与训练的示范上的同一损失",
        "falls, and ends where it was lowest", "下降，并停在最低点",
        "it rises again when the demonstrations are learned by heart: fewer --epochs",
        "开始死记示范时会回升：减少 --epochs",
    ),
    Metric(
        "tokens_per_second", "perf/throughput", "tokens/s", "speed", "速度",
        "prompt and response tokens of the step, per second (and per GPU)",
        "本步的提示与回答 token 数除以秒数（每 GPU）",
        "stable", "稳定",
    ),
    Metric(
        "seconds_per_step", "timing_s/step", "s", "time per step", "每步时间",
        "wall-clock time of the step, evaluation and checkpoint left out", "一步的用时，不含评估和检查点",
        "stable", "稳定",
    ),
)  # fmt: skip

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in TABLE}
PART = "reward/"  # reward/<part>: mean of one named part of a reward that returns several
_VERL: dict[str, str] = {metric.name: metric.verl for metric in TABLE if metric.verl}
_COUNTERPART: dict[str, str] = {**_VERL, **{verl: plain for plain, verl in _VERL.items()}}

# The only values in which a resumed run may differ from an undisturbed one.
TIMING_NAMES: frozenset[str] = frozenset(
    name for plain in ("tokens_per_second", "seconds_per_step") for name in (plain, _VERL[plain])
)


def with_both_names(values: Mapping[str, Value]) -> dict[str, Value]:
    """`values` under plain names first, then under verl's, whichever of the two they came with.

    Names that only one side knows (reward/<part>, val-core/...) stay as they are. A value given under both names is
    not touched.
    """
    plain = {name: value for name, value in values.items() if name not in _COUNTERPART or name in _VERL}
    verl = {name: value for name, value in values.items() if name not in plain}
    for name, value in verl.items():
        plain.setdefault(_COUNTERPART[name], value)
    for name, value in plain.items():
        if name in _VERL:
            verl.setdefault(_VERL[name], value)
    return {**plain, **verl}


def markdown_table(language: str) -> str:
    """The table as docs/metrics.md ("en") and docs/metrics.zh.md ("zh") hold it."""
    english = language == "en"
    head = ("name", "verl", "unit", "what it is", "healthy") if english else ("名称", "verl", "单位", "含义", "健康")
    rows = [head, ("---",) * len(head)]
    for metric in TABLE:
        meaning, healthy = (metric.meaning, metric.healthy) if english else (metric.meaning_zh, metric.healthy_zh)
        verl = f"`{metric.verl}`" if metric.verl else "–"
        rows.append((f"`{metric.name}`", verl, metric.unit or "–", meaning, healthy or "–"))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)

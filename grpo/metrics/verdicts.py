"""Whether each metric looks healthy, in a sentence, and what to do when it does not (S2-37 .. S2-41).

Pure functions of the series. Leaves out the display (grpo/report.py) and acting on it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo.metrics.history import History
from grpo.metrics.names import BY_NAME

Level = Literal["good", "normal", "attention", "unknown"]  # normal: looks wrong and is not
Said = tuple[Level, str, str]  # level, English, Chinese
ENOUGH = 10  # steps; below that a trend is noise
_KL = BY_NAME["kl_loss"].band or (0.0, 0.0)
_CALM = "--lr 5e-7, --kl_coef 0.01, --rollout_n 8"


@dataclass(frozen=True)
class Verdict:
    """What is to be said of one metric, in English and Chinese."""

    metric: str
    level: Level
    en: str
    zh: str


@dataclass(frozen=True)
class Trend:
    """Means of the first and of the last fifth of a run, and what lies between them."""

    early: float
    late: float
    direction: Literal["rises", "falls", "flat"]


def trend(values: Sequence[float]) -> Trend | None:
    """None below ENOUGH values. A change counts when it is over twice its own standard error."""
    if len(values) < ENOUGH:
        return None
    fifth = max(3, len(values) // 5)
    first, last = values[:fifth], values[-fifth:]
    early, late = statistics.fmean(first), statistics.fmean(last)
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / fifth)
    if abs(late - early) <= max(2 * error, 1e-9):
        return Trend(early, late, "flat")
    return Trend(early, late, "rises" if late > early else "falls")


def verdicts(history: History) -> list[Verdict]:
    """One verdict for each metric that has a rule and was measured, those that need attention first."""
    bad = {name: history[name].bad[0] for name in BY_NAME if name in history and history[name].bad}
    found = [_not_finite(name, step) for name, step in bad.items()]
    for name, rule in _RULES.items():
        if name not in bad and (values := _values(history, name)):
            now = trend(values)
            few = f"{len(values)} values: too few to judge", f"只有 {len(values)} 个值，不足以判断"
            found.append(Verdict(name, *(rule(now, history) if now else ("unknown", *few))))
    found += [Verdict(name, *rule(values)) for name, rule in _SHORT_RULES.items() if (values := _values(history, name))]
    order = {"attention": 0, "good": 1, "normal": 2, "unknown": 3}
    return sorted(found, key=lambda verdict: order[verdict.level])


def _values(history: History, name: str) -> list[float]:
    return history[name].values if name in history else []


def _not_finite(name: str, step: int) -> Verdict:
    return Verdict(
        name,
        "attention",
        f"became NaN or infinite at step {step}: look at the rewards of that step, and try {_CALM}",
        f"在第 {step} 步变为 NaN 或无穷：检查该步的奖励，并尝试 {_CALM}",
    )


def _rises(history: History) -> bool:
    now = trend(_values(history, "reward_mean"))
    return now is not None and now.direction == "rises"


def _reward_mean(now: Trend, history: History) -> Said:
    span = f"{now.early:.3g} → {now.late:.3g}"
    values = history["reward_mean"].values
    if now.direction == "rises":
        return ("good", f"rises: {span}", f"上升：{span}")
    if min(values) == max(values):
        return (
            "attention",
            f"is {now.late:.3g} for every response of every step: does data_source name the right reward, can the "
            "answer be found in the response, has ground_truth its format?",
            f"每一步的每个回答都是 {now.late:.3g}：data_source 是否对应正确的奖励，回答中能否提取答案，"
            "ground_truth 的格式是否正确？",
        )
    if now.direction == "falls":
        return ("attention", f"falls: {span}; try {_CALM}", f"下降：{span}；尝试 {_CALM}")
    return (
        "attention",
        f"did not clearly move: {span}; more steps, a larger --lr, or prompts of which some responses are right",
        f"没有明显变化：{span}；增加步数、加大 --lr，或换用部分回答能答对的提示",
    )


def _reward_std(now: Trend, history: History) -> Said:
    span = f"{now.early:.3g} → {now.late:.3g}"
    if now.direction == "falls":
        return ("good", f"falls: {span}", f"下降：{span}")
    if now.early == now.late == 0:
        return (
            "attention",
            "is 0: all responses of a group get the same reward, nothing to learn from; raise --rollout_n or "
            "--temperature, or change the prompts",
            "为 0：同组回答奖励相同，没有可学的信号；增大 --rollout_n 或 --temperature，或更换提示",
        )
    if now.direction == "rises" and not _rises(history):
        return (
            "attention",
            f"rises without the reward: {span}; try {_CALM}",
            f"奖励未升而它上升：{span}；尝试 {_CALM}",
        )
    if now.direction == "rises":
        return (
            "normal",
            f"rises with the reward: {span}; it falls once most responses are right",
            f"随奖励一起上升：{span}；多数回答正确后会下降",
        )
    return ("normal", f"steady: {span}", f"平稳：{span}")


def _kl_loss(now: Trend, history: History) -> Said:
    late, size = f"{now.late:.2g}", round(abs(now.late), 9)  # rounded: a mean of tenths may be a hair over a tenth
    if size > _KL[1]:
        return (
            "attention",
            f"{late} at the end, above {_KL[1]}: the policy is far from the reference; try --kl_coef 0.01 or --lr 5e-7",
            f"最后为 {late}，高于 {_KL[1]}：策略偏离参考模型较远；尝试 --kl_coef 0.01 或 --lr 5e-7",
        )
    if size < _KL[0]:
        return (
            "normal",
            f"{late} at the end, below {_KL[0]}: the policy has hardly moved yet; normal early and with a small --lr",
            f"最后为 {late}，低于 {_KL[0]}：策略几乎没有变化；训练早期或 --lr 较小时正常",
        )
    return ("good", f"{late} at the end, within {_KL[0]} to {_KL[1]}", f"最后为 {late}，在 {_KL[0]} 到 {_KL[1]} 之间")


def _policy_loss(now: Trend, history: History) -> Said:
    span = f"{min(history['policy_loss'].values):.2g} … {max(history['policy_loss'].values):.2g}"
    return (
        "normal",
        f"{span}; near 0 is normal: it does not measure success",
        f"{span}；接近 0 是正常的：它不衡量成败",
    )


def _response_length(now: Trend, history: History) -> Said:
    span = f"{now.early:.3g} → {now.late:.3g}"
    ratio = now.late / now.early if now.early else math.inf
    if 2 / 3 <= ratio <= 1.5:
        return ("good", f"stable: {span} tokens", f"稳定：{span} token")
    if _rises(history):
        return (
            "normal",
            f"changes with the rising reward: {span} tokens; read the responses below",
            f"随奖励上升而变化：{span} token；请阅读下面的回答",
        )
    cure_en = "longer is not better; try --recipe drgrpo" if ratio > 1 else f"read the responses below; try {_CALM}"
    cure_zh = "变长不等于变好；尝试 --recipe drgrpo" if ratio > 1 else f"请阅读下面的回答；尝试 {_CALM}"
    return ("attention", f"changes: {span} tokens; {cure_en}", f"变化：{span} token；{cure_zh}")


def _response_clip_fraction(now: Trend, history: History) -> Said:
    late = f"{now.late:.0%}"
    if now.late > 0.1:
        return (
            "attention",
            f"{late} of the responses are cut at the limit: raise --max_response_length",
            f"{late} 的回答被截断：增大 --max_response_length",
        )
    return ("good", f"{late} of the responses are cut", f"{late} 的回答被截断")


def _entropy(now: Trend, history: History) -> Said:
    span = f"{now.early:.2g} → {now.late:.2g}"
    if now.late < 0.1 * now.early and not _rises(history):
        return (
            "attention",
            f"collapsed without a gain: {span}; try --kl_coef 0.01 or --lr 5e-7",
            f"在奖励未升时塌缩：{span}；尝试 --kl_coef 0.01 或 --lr 5e-7",
        )
    return ("good", span, span)


def _clip_fraction(now: Trend, history: History) -> Said:
    if not any(history["clip_fraction"].values):
        return (
            "normal",
            "0 throughout: normal with one update per step, where nothing can be clipped",
            "始终为 0：每步只更新一次时正常，此时没有可裁剪的内容",
        )
    if now.late > 0.2:
        return (
            "attention",
            f"{now.late:.0%} at the end: updates are too large; --lr 5e-7",
            f"最后为 {now.late:.0%}：更新过大；--lr 5e-7",
        )
    return ("good", f"{now.late:.1%} at the end", f"最后为 {now.late:.1%}")


def _grad_norm(now: Trend, history: History) -> Said:
    span = f"{now.early:.3g} → {now.late:.3g}"
    if now.late > 10 * now.early > 0:
        return ("attention", f"grows: {span}; try {_CALM}", f"增长：{span}；尝试 {_CALM}")
    return ("good", f"no lasting growth: {span}", f"没有持续增长：{span}")


def _zero_std_fraction(now: Trend, history: History) -> Said:
    late = f"{now.late:.0%}"
    if now.late <= 0.8:
        return ("good", f"{late} at the end", f"最后为 {late}")
    if _rises(history):
        return (
            "normal",
            f"{late} of the groups: nearly every prompt gives one reward now; harder prompts would teach more",
            f"最后有 {late} 的组：几乎每个提示的奖励都已相同；更难的提示能学到更多",
        )
    return (
        "attention",
        f"{late} of the groups teach nothing: prompts are too easy or too hard, or --rollout_n is too small",
        f"{late} 的组没有学习信号：提示过易或过难，或 --rollout_n 过小",
    )


def _reward_errors(values: Sequence[float]) -> Said:
    total = round(sum(values))
    if total:
        return ("attention", f"{total} reward calls failed", f"奖励函数失败 {total} 次")
    return ("good", "no reward call failed", "奖励函数没有失败")


def _val_accuracy(values: Sequence[float]) -> Said:
    if len(values) < 2:
        return ("unknown", f"{values[0]:.1%}, evaluated once", f"{values[0]:.1%}，只评估了一次")
    span = f"{values[0]:.1%} → {values[-1]:.1%}"
    if values[-1] > values[0]:
        return ("good", f"rose on prompts never trained on: {span}", f"在未训练过的提示上上升：{span}")
    return ("attention", f"did not rise on prompts never trained on: {span}", f"在未训练过的提示上没有上升：{span}")


_RULES: dict[str, Callable[[Trend, History], Said]] = {
    "reward_mean": _reward_mean,
    "reward_std": _reward_std,
    "kl_loss": _kl_loss,
    "policy_loss": _policy_loss,
    "response_length": _response_length,
    "response_clip_fraction": _response_clip_fraction,
    "entropy": _entropy,
    "clip_fraction": _clip_fraction,
    "grad_norm": _grad_norm,
    "zero_std_fraction": _zero_std_fraction,
}
# Rules that need no trend.
_SHORT_RULES: dict[str, Callable[[Sequence[float]], Said]] = {
    "reward/errors": _reward_errors,
    "val_accuracy": _val_accuracy,
}

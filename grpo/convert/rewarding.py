"""Rewards of other tools as ours by name: `--reward accuracy,cosine:max_len=1024`. A user's own function stays his."""

from __future__ import annotations

from collections.abc import Iterator

from grpo.convert.conversion import Answer, Ask, Rule
from grpo.convert.tables import Text, as_text
from grpo.flags import by_spelling

# Names in TRL and Open-R1 -> ours.
TRL = {
    "accuracy_reward": "accuracy",
    "reasoning_accuracy_reward": "accuracy",
    "accuracy": "accuracy",
    "think_format_reward": "format",
    "format_reward": "format",
    "format": "format",
    "get_soft_overlong_punishment": "soft_overlong",
    "soft_overlong_punishment": "soft_overlong",
    "get_cosine_scaled_reward": "cosine",
    "cosine": "cosine",
    "get_repetition_penalty_reward": "repetition",
    "repetition_penalty": "repetition",
}
SWIFT = ("accuracy", "format", "cosine", "repetition", "soft_overlong")
# ms-swift's parameters -> those of our reward.
PARAMETERS = {
    "cosine": {
        name: f"cosine_{name}"
        for name in (
            *("min_len_value_wrong", "max_len_value_wrong", "min_len_value_correct", "max_len_value_correct"),
            "max_len",
        )
    },
    "repetition": {"n_grams": "repetition_n_grams", "max_penalty": "repetition_max_penalty"},
    "soft_overlong": {"max_len": "soft_max_length", "buffer": "soft_cache_length"},
}
ANSWERS = "launcher.data.answer_key"


def swift_rewards(ask: Ask) -> Iterator[Answer]:
    """reward_funcs with their parameters, then reward_model, with reward_weights."""
    names = ask.words("reward_funcs")
    specs = [_with_parameters(ask, name) if name in SWIFT else name for name in names]
    specs += [f"reward_model:{path}" for path in ask.words("reward_model")]
    own = [name for name in names if name not in SWIFT]
    plugins = ask.words("external_plugins")
    if own and not plugins:
        yield Answer(why=Text("own_rewards", {"names": ", ".join(own)}), how="none", options=("reward_funcs",))
        specs = [spec for spec in specs if spec not in own]
    yield from _named(specs, ask.words("reward_weights"), plugins, answers="accuracy" in names)


def trl_rewards(ask: Ask) -> Iterator[Answer]:
    """reward_funcs by the names of TRL and Open-R1; a reward model comes first, as there."""
    models = ask.words("reward_model_name_or_path")
    names = ask.words("reward_funcs")
    own = [name for name in names if name not in TRL and "/" not in name]
    specs = [f"reward_model:{path}" for path in models]
    specs += [TRL.get(name, f"reward_model:{name}") for name in names if name not in own]
    if own:
        yield Answer(why=Text("own_rewards", {"names": ", ".join(own)}), how="none", options=("reward_funcs",))
    weights = ask.words("reward_weights") if not own else []
    yield from _named(specs, weights, [], answers="accuracy" in specs)


def paddle_rewards(ask: Ask) -> Iterator[Answer]:
    """The reward server, or with use_rm_server false a reward model."""
    if ask.truth("use_rm_server"):
        specs = [f"server:{ask.value('reward_server')}"]
    else:
        specs = [f"reward_model:{path}" for path in ask.words("reward_model_name_or_path") if path]
    yield from _named(specs, [], [])


def openrlhf_rewards(ask: Ask) -> Iterator[Answer]:
    """A reward model is ours by name; functions and servers have another form there."""
    specs = [f"reward_model:{path}" for path in ask.words("reward_pretrain")]
    own = ask.words("remote_rm_url")
    if own:
        kind = "remote_function" if own[0].endswith(".py") else "remote_server"
        yield Answer(why=Text(kind, {"place": own[0]}), how="none", options=("remote_rm_url",))
    yield from _named(specs, [], [])


def _with_parameters(ask: Ask, name: str) -> str:
    """The reward's name with the parameters that the file gives it."""
    given = {ours: theirs for ours, theirs in PARAMETERS.get(name, {}).items() if ask.given(theirs)}
    return name + "".join(f":{ours}={as_text(ask.value(theirs))}" for ours, theirs in given.items())


def _named(specs: list[str], weights: list[str], plugins: list[str], *, answers: bool = False) -> Iterator[Answer]:
    """The answer that names these rewards. answers: one of them compares with the column `solution`, as there."""
    if not specs:
        return
    wanted = {"reward": ",".join(specs), "reward_weights": ",".join(weights), "external_plugins": ",".join(plugins)}
    flags = {flag: text for flag, text in wanted.items() if text}
    keys = {str(by_spelling()[flag].key): text for flag, text in flags.items()}
    yield Answer(keys | ({ANSWERS: "solution"} if answers else {}), Text("solution") if answers else None)


RULES: tuple[Rule, ...] = (swift_rewards, trl_rewards, paddle_rewards, openrlhf_rewards)

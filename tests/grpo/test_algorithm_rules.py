"""Parts of an algorithm that do not go together, are told apart from those that only have no effect; --algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo import flags, rules
from grpo.config import ConfigError, Settings, recipe_files
from grpo.embedded.engine import EmbeddedEngine
from grpo.engine import Run
from grpo.presets import KEYS, algorithms, read_algorithm
from grpo.resolve import Resolved, resolve
from grpo.values import defaults

ACTOR = "actor_rollout_ref.actor"


def resolved(*words: str, **environ: str) -> Resolved:
    return resolve(flags.parse(["--data", "p.json", "--model", "scratch", *words]), environ)


def settings(*words: str) -> Settings:
    return resolved(*words).settings()


def refused(*words: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        rules.check(settings(*words), own_reward="--algorithm=gdpo" in words or "estimator=gdpo" in " ".join(words))
    assert len(caught.value.problems) == 1
    return caught.value


@pytest.mark.parametrize(
    ("words", "said", "fix"),
    [
        (
            f"{ACTOR}.policy_loss.loss_mode=sapo",
            "must say so too",
            {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
        ),
        (
            "algorithm.adv_estimator=reinforce_plus_plus algorithm.filter_groups.enable=true --rollout_n=1",
            "sample 2 or more",
            {"actor_rollout_ref.rollout.n": 2},
        ),
        ("launcher.adv_std=biased --norm_adv_by_std=false", "divides by none", {"launcher.adv_std": "unbiased"}),
        ("launcher.adv_std=biased --algorithm=rloo", "and rloo divides by none", {"launcher.adv_std": "unbiased"}),
        (
            "algorithm.kl_ctrl.type=adaptive",
            "algorithm.use_kl_in_reward=false (default); set it to true",
            {"algorithm.use_kl_in_reward": True},
        ),
        (
            "launcher.update_ref_after=5 --use_kl_loss=false",
            "nothing is measured",
            {"launcher.update_ref_after": 0},
        ),
        (
            "algorithm.adv_estimator=gdpo algorithm.use_kl_in_reward=true --use_kl_loss=false",
            f"have it in the loss: {ACTOR}.use_kl_loss=true",
            {"algorithm.use_kl_in_reward": False},
        ),
        (
            "algorithm.gdpo_reward_keys=[a,b]",
            "belongs to algorithm.adv_estimator=gdpo",
            {"algorithm.adv_estimator": "gdpo"},
        ),
        (
            "--algorithm=gdpo algorithm.gdpo_reward_keys=[a,b] algorithm.gdpo_reward_weights=[1]",
            "has 1 weights for 2 parts",
            {},
        ),
        (
            "reward.reward_kwargs.overlong_buffer_cfg.enable=true reward.reward_kwargs.overlong_buffer_cfg.len=2000",
            "is more than the whole response, data.max_response_length=1024 (default)",
            {"reward.reward_kwargs.overlong_buffer_cfg.len": None},
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused_with_what_would_do(words: str, said: str, fix: dict):
    """S0-29, S0-41, S1-02, S1-06: by name, with the reason."""
    problem = refused(*words.split())
    assert said in str(problem)
    assert problem.fix == fix
    if fix:
        mended = [f"{key}={'null' if value is None else value}" for key, value in fix.items()]
        rules.check(settings(*words.split(), *mended), own_reward=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--algorithm=rloo --norm_adv_by_std=true", "changes nothing: rloo does not divide"),
        ("algorithm.gamma=0.9", "changes nothing: grpo has one advantage for all tokens"),
        ("--algorithm=sapo --clip_ratio=0.3", "changes nothing: sapo clips no ratio"),
        ("--algorithm=gpg --ppo_epochs=2", "exact only for one update per step"),
        (f"{ACTOR}.policy_loss.loss_mode=gspo", "GSPO's paper has seq-mean-token-mean"),
        ("--kl_loss_type=kl", "does not know the reference; kl+ pulls to it"),
        ("algorithm.use_kl_in_reward=true", "the KL counts twice"),
        ("launcher.ref_mixup=0.5", "leaves the reference where it is"),
        (
            "--algorithm=drgrpo --kl_coef=0.01",
            f"{ACTOR}.kl_loss_coef=0.01 (flag --kl_coef) changes nothing: {ACTOR}.use",
        ),
        ("algorithm.kl_ctrl.kl_coef=0.1", "changes nothing: algorithm.use_kl_in_reward=false (default)"),
        (
            "--use_kl_loss=false algorithm.use_kl_in_reward=true algorithm.kl_ctrl.target_kl=0.2",
            "algorithm.kl_ctrl.target_kl=0.2 (override) changes nothing: algorithm.kl_ctrl.type=fixed (default)",
        ),
    ],
)
def test_parts_without_effect_are_said(words: str, said: str):
    rules.check(settings(*words.split()))
    (warning,) = rules.warnings(settings(*words.split()))
    assert said in warning


@pytest.mark.parametrize("words", ["--algorithm=drgrpo --kl_coef=0", "--kl_coef=0.01", "--recipe=drgrpo"])
def test_a_kl_that_is_there_or_is_to_be_nowhere_is_not_doubted(words: str):
    assert rules.warnings(settings(*words.split())) == []


@pytest.mark.parametrize("name", algorithms())
def test_an_algorithm_by_itself_is_neither_refused_nor_doubted(name: str):
    rules.check(settings("--algorithm", name), own_reward=True)
    assert rules.warnings(settings("--algorithm", name)) == []


def test_gdpo_needs_rewards_to_compare():
    assert str(refused("--algorithm", "gdpo")).endswith("name them, --reward accuracy,format")
    rules.check(settings("--algorithm", "gdpo", "--reward", "accuracy,format"))


@pytest.mark.parametrize(
    ("word", "instead"),
    [("algorithm.adv_estimator=remax", "take rloo"), (f"{ACTOR}.policy_loss.loss_mode=geo_mean", "take gspo")],
)
def test_what_only_verl_has_is_refused_by_the_embedded_engine_with_what_is_nearest(word: str, instead: str):
    made = settings(word)
    out = Path("/out")
    run = Run(made.config(), made.origins, out, out / "t", out / "v")
    (refusal,) = EmbeddedEngine().refusals(run, here=False)
    assert refusal.text.startswith(f"{word} (override): the embedded engine cannot do this; {instead}")


def test_there_is_a_name_for_each_algorithm():
    """S0-01, S2-30."""
    assert algorithms() == (
        *("cispo", "dapo", "drgrpo", "gdpo", "gpg", "grpo", "grpo_passk", "gspo", "opo", "reinforce_plus_plus"),
        *("reinforce_plus_plus_baseline", "rloo", "sapo"),
    )
    (flag,) = (flag for flag in flags.load_flags() if flag.name == "algorithm")
    for language in ("en", "zh"):
        listed = flag.help[language].partition("：")[0].partition(":")[0].split(" | ")
        assert sorted(listed) == list(algorithms())


def test_the_keys_of_algorithms_exist():
    assert [key for key in KEYS if not any(known.startswith(key) for known in defaults())] == []


def test_an_algorithm_lies_over_files_and_environment_and_under_other_flags(tmp_path: Path):
    (tmp_path / "my.yaml").write_text(f"{{{ACTOR}.clip_ratio_high: 0.5, {ACTOR}.loss_agg_mode: token-sum}}")
    words = ["--algorithm", "dapo", "--config", str(tmp_path / "my.yaml"), "--use_kl_loss", "yes"]
    made = resolved(*words, USE_KL_LOSS="yes", LOSS_AGG_MODE="token-sum").settings()
    assert made[f"{ACTOR}.clip_ratio_high"] == 0.28
    assert made.origins[f"{ACTOR}.clip_ratio_high"] == "flag --algorithm dapo"
    assert made[f"{ACTOR}.loss_agg_mode"] == "token-mean"
    assert made[f"{ACTOR}.use_kl_loss"] is True
    assert resolved(*words).recipe == "dapo"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rlo", "did you mean rloo?"),
        ("REINFORCE++", "did you mean reinforce_plus_plus?"),
        ("demo", "a recipe with more than an algorithm in it; take it with --recipe demo"),
        ("ppo_with_critic", "there are cispo, dapo"),
    ],
)
def test_a_name_that_is_no_algorithm_is_answered(name: str, said: str):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        read_algorithm(name)
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        resolved("--algorithm", name)


def test_recipes_are_short_and_say_what_to_type_and_what_to_expect():
    for path in recipe_files():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 30, path.stem
        head = "\n".join(line for line in text.splitlines() if line.startswith("#"))
        assert f"./train.sh --recipe {path.stem}" in head or f"--algorithm {path.stem} " in head, path.stem
        assert "Expect" in head or "not measured" in head, path.stem
        if path.stem in algorithms():
            assert "arXiv" in head, path.stem

"""Every algorithm and recipe as verl is told it; what verl does not have, or would pass over, is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from grpo import flags
from grpo.config import recipe_files
from grpo.engine import Run
from grpo.presets import algorithms
from grpo.resolve import resolve
from grpo.verl_backend.engine import VerlEngine
from grpo.verl_backend.settings.guard import guarded
from grpo.verl_backend.settings.overrides import overrides
from tests.verl_backend.test_overrides import composed, verl_yaml

__all__ = ["verl_yaml"]
ACTOR = "actor_rollout_ref.actor"
# Recipes whose model or data only the embedded engine has, and those that verl cannot honour as they are.
EMBEDDED = ("demo", "gsm8k_smoke", "summarize_t5")
WITH_MORE = {
    "gdpo": ["trainer.use_v1=False", "algorithm.gdpo_reward_keys=[accuracy,format]"],
    "paddle_kk": [
        *("launcher.clip_range_score=null", "launcher.normalize_reward=false"),
        *("launcher.normalize_advantage=null", "launcher.min_response_length=0"),
    ],
}
RECIPES = [path.stem for path in recipe_files() if path.stem not in EMBEDDED]


def run_of(*words: str) -> Run:
    settings = resolve(flags.parse(["--data", "p.json", "--model", "Qwen/Qwen2.5-7B", *words]), {}).settings()
    out = Path("/out")
    return Run(settings.config(), settings.origins, out, out / "t", out / "v", passthrough=settings.passthrough)


def said(*words: str) -> dict[str, Any]:
    """Key -> value of what verl is told."""
    told, _ = guarded(overrides(run_of(*words)))
    return {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(told)}


def refused(*words: str) -> list[str]:
    return [refusal.text for refusal in VerlEngine().refusals(run_of(*words), here=False)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_comes_to_a_command_of_verl(name: str):
    words = ["--recipe", name, *WITH_MORE.get(name, [])]
    assert refused(*words) == []
    assert said(*words)["algorithm.adv_estimator"] == run_of(*words).config.algorithm.adv_estimator


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_verl_composes_every_recipe_and_finds_its_values(name: str, verl_yaml: Path):
    run = run_of("--recipe", name, *WITH_MORE.get(name, []))
    config = composed(verl_yaml, guarded(overrides(run))[0])
    for group in ("algorithm", f"{ACTOR}.policy_loss", ACTOR):
        ours = OmegaConf.to_container(OmegaConf.select(run.config, group))
        theirs = OmegaConf.to_container(OmegaConf.select(config, group), resolve=True)
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        for key, value in ours.items():
            if not isinstance(value, dict) and value is not None:
                assert theirs[key] == value, (group, key)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WITH_MORE))
def test_a_recipe_that_verl_does_not_have_as_it_is_is_refused_by_name(name: str):
    assert refused("--recipe", name)
    assert all("override" not in text for text in refused("--recipe", name))


@pytest.mark.slow
def test_dapo_gets_the_manager_that_has_its_penalty_and_all_that_it_reads():
    """S0-41: verl issue 4268, the penalty that is passed over without notice."""
    told = said("--algorithm", "dapo", "--max_response_length", "500")
    assert told["reward.reward_manager.name"] == "dapo"
    assert told["reward.reward_kwargs.max_resp_len"] == 500
    buffer = "reward.reward_kwargs.overlong_buffer_cfg"
    assert {name: told[f"{buffer}.{name}"] for name in ("enable", "len", "penalty_factor", "log")} == {
        "enable": True,
        "len": 100,
        "penalty_factor": 1.0,
        "log": True,
    }
    assert (told["algorithm.filter_groups.enable"], told["algorithm.filter_groups.metric"]) == (True, "reward")
    assert (told[f"{ACTOR}.clip_ratio_low"], told[f"{ACTOR}.clip_ratio_high"]) == (0.2, 0.28)


def test_what_is_off_is_not_said():
    told = said()
    assert not [key for key in told if "overlong_buffer" in key or "filter_groups" in key or "gdpo" in key]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("launcher.adv_std=biased", "launcher.adv_std=biased (override): verl divides by the unbiased"),
        ("launcher.clip_range_score=10", "launcher.clip_range_score=10.0 (override): verl has no limit"),
        ("launcher.normalize_reward=true", "launcher.normalize_reward=true (override): verl does not normalise"),
        ("launcher.normalize_advantage=true", "launcher.normalize_advantage=true (override): verl never whitens"),
        ("launcher.mask_truncated=true", "launcher.mask_truncated=true (override): verl trains on"),
        ("launcher.pg_loss_coef=0.5", "launcher.pg_loss_coef=0.5 (override): verl has no weight"),
        ("launcher.update_old_after=4", "launcher.update_old_after=4 (override): verl samples from"),
        ("launcher.update_ref_after=4", "launcher.update_ref_after=4 (override): verl keeps its reference"),
        (
            "algorithm.adv_estimator=gdpo algorithm.gdpo_reward_keys=[a]",
            "algorithm.adv_estimator=gdpo (override): verl's V1 trainer does not hand the parts",
        ),
        (
            "algorithm.adv_estimator=gdpo trainer.use_v1=False",
            "algorithm.adv_estimator=gdpo (override): verl wants the parts by name",
        ),
        ("algorithm.adv_estimator=remax", "algorithm.adv_estimator=remax (override): verl's V1 trainer does not"),
        (
            "--algorithm=dapo trainer.use_v1=False",
            "algorithm.filter_groups.enable=true (flag --algorithm dapo): only verl's V1 trainer",
        ),
        (
            "--algorithm=dapo reward.reward_manager.name=naive",
            "reward.reward_kwargs.overlong_buffer_cfg.enable=true (flag --algorithm dapo): verl's manager naive",
        ),
        ("--algorithm=dapo algorithm.filter_groups.max_num_gen_batches=3", "algorithm.filter_groups.max_num_gen"),
    ],
)
def test_what_verl_does_not_have_is_refused_by_name(words: str, begins: str):
    """S0-27, S0-29, S0-31, S1-02, S1-06, S1-07: never dropped."""
    (text,) = refused(*words.split())
    assert text.startswith(begins)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["launcher.normalize_advantage=true", "launcher.normalize_advantage=false"])
def test_whitening_that_is_what_verl_does_anyhow_is_honoured(word: str):
    estimator = "reinforce_plus_plus" if word.endswith("true") else "grpo"
    assert refused(word, f"algorithm.adv_estimator={estimator}") == []


@pytest.mark.slow
def test_every_algorithm_is_told_to_verl_as_we_have_it():
    for name in algorithms():
        run = run_of("--algorithm", name)
        told = said("--algorithm", name)
        loss = run.config.actor_rollout_ref.actor.policy_loss.loss_mode
        assert told.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla") == loss
        assert told[f"{ACTOR}.use_kl_loss"] == run.config.actor_rollout_ref.actor.use_kl_loss or name == "drgrpo"

"""What a run's algorithm is called in its summary and report, whichever way it was asked for."""

from __future__ import annotations

import pytest

from grpo import flags
from grpo.launch import choose_engine, make_run
from grpo.presets import algorithm_name, algorithms
from grpo.resolve import resolve

ACTOR = "actor_rollout_ref.actor"


def name_of(*words: str) -> str:
    resolved = resolve(flags.parse(["--data", "p.json", "--model", "scratch", *words]), {})
    run = make_run(resolved, resolved.settings())
    name = algorithm_name(resolved.settings())
    assert run.algorithm == name
    return name


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms())
def test_it_is_what_algorithm_or_a_recipe_says(name: str):
    assert name_of("--algorithm", name) == name
    assert name_of("--recipe", name) == name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "grpo"),
        (("algorithm.adv_estimator=rloo",), "rloo"),
        ((f"{ACTOR}.policy_loss.loss_mode=gspo",), "gspo"),
        ((f"{ACTOR}.policy_loss.loss_mode=geo_mean",), "geo_mean"),
        (("algorithm.adv_estimator=rloo", f"{ACTOR}.policy_loss.loss_mode=cispo"), "rloo + cispo"),
        ((f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", "--norm_adv_by_std=false"), "drgrpo"),
        (("--algorithm=gspo", f"{ACTOR}.clip_ratio_high=1e-3"), "gspo"),  # the same algorithm, another number
        (("--algorithm=gspo", f"{ACTOR}.policy_loss.loss_mode=cispo"), "cispo"),  # another algorithm
        (("--recipe=dapo", "--algorithm=drgrpo"), "drgrpo"),  # the flag lies over the recipe
    ],
)
def test_else_it_is_what_makes_it_different(words: tuple[str, ...], name: str):
    assert name_of(*words) == name


@pytest.mark.parametrize("engine", ["embedded", "verl"])
def test_keeping_the_best_weights_is_done_by_one_engine_and_refused_by_the_other(engine: str):
    words = ["--data", "p.json", "--model", "some/model", "launcher.save_best=val_accuracy", f"--engine={engine}"]
    resolved = resolve(flags.parse(words), {})
    settings = resolved.settings()
    refused = choose_engine(settings)[0].refusals(make_run(resolved, settings), here=False)
    said = [refusal.text for refusal in refused if "save_best" in refusal.text]
    expected = ["launcher.save_best=val_accuracy (override): verl keeps the newest checkpoints; keep them all"]
    assert [text.split(" (--keep)")[0] for text in said] == (expected if engine == "verl" else [])

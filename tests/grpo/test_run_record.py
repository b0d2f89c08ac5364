"""config.yaml and run.json: every value comes back as it was, with its origin, and no secret is written down."""

from __future__ import annotations

import pytest
import yaml
from omegaconf import OmegaConf

from grpo.run_record import config_yaml, run_json, without_secrets

SETTINGS = {
    "data": {"train_files": "a.json", "train_batch_size": 256},
    "actor_rollout_ref": {"rollout": {"n": 5}, "actor": {"optim": {"lr": 1e-6, "betas": [0.9, 0.999]}}},
    "trainer": {"save_freq": 20, "logger": ["console", "file"], "total_training_steps": None},
    "launcher": {"data": {"system": None}},
}


def test_config_yaml_says_behind_every_value_where_it_came_from():
    written = config_yaml(
        OmegaConf.create(SETTINGS), {"actor_rollout_ref.rollout.n": "flag --rollout_n", "trainer.logger": "recipe demo"}
    )
    assert "    n: 5  # flag --rollout_n" in written.splitlines()
    assert "  logger: [console, file]  # recipe demo" in written.splitlines()
    assert "      lr: 1.0e-06  # default" in written.splitlines()
    assert yaml.safe_load(written) == SETTINGS


@pytest.mark.parametrize(
    "value",
    [
        *("1e5", "007", "true", "null", "~", "", " a ", "a: b # c", "数学：你好", "two\nlines", "it's so", '"', "a,b"),
        *("${not.a.key}", "x ${a:b} ${", "{{ x }}", "1_000", "0x1f", "2026-01-01", ".inf", "nan", "-1", "@a", "%"),
        *("\u2028", "a\\b", 1e-6, 1e30, 3, -1, True, False, None, [], {}, ["1", 2, None, [True]], [{"a": "b: c"}]),
    ],
)
def test_every_value_comes_back_from_config_yaml_as_it_was(value: object):
    # `${` in a value is text by now; OmegaConf writes such text with a backslash
    given = value.replace("${", "\\${") if isinstance(value, str) else value
    text = config_yaml(OmegaConf.create({"a": {"b": given}}), {})
    got = OmegaConf.to_container(OmegaConf.create(text), resolve=True)["a"]["b"]
    assert got == value
    assert type(got) is type(value)
    assert len(text.splitlines()) == 3


def test_no_secret_is_written_down():  # RELIABILITY: planted secrets appear nowhere
    url = "http://user:hunter2@proxy.example:80/x"
    token = "hf_abcdefghijklmnopqrstuv"
    text = config_yaml(OmegaConf.create({"trainer": {"wandb_proxy": url, "note": f"use {token}"}}), {})
    text += run_json(f"./train.sh +trainer.wandb_proxy={url} HF_TOKEN={token} --x password=hunter2", {}, None)
    assert "hunter2" not in text
    assert token not in text
    assert "http://***@proxy.example:80/x" in text
    assert without_secrets("ppo_max_token_len_per_gpu=16384 seq-mean-token-sum") == (
        "ppo_max_token_len_per_gpu=16384 seq-mean-token-sum"
    )

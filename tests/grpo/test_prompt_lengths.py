"""Prompts too long for the model are counted before verl starts, which would end in a division or a sampler of 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.record import Record
from grpo import flags, launch, repair
from grpo.config import ConfigError
from grpo.resolve import Resolved, resolve
from grpo.verl_backend.engine import VerlEngine


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tokenizer that makes one token of each word."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def fitted(model: Path, *words: str, lengths: list[int]) -> Resolved:
    made = resolve(flags.parse(["--data", "p.json", "--model", str(model), "--n_gpus", "1", *words]), {})
    records = [
        Record([{"role": "user", "content": "a " * length}], "math", "1", {}, number)
        for number, length in enumerate(lengths, 1)
    ]
    repair.repaired(made, lambda: launch.fit(made, launch.Data(records, records[:1]), VerlEngine()))
    return made


def test_a_batch_fits_the_prompts_that_are_short_enough(model: Path):
    made = fitted(model, "--max_prompt_length", "5", lengths=[5, 5, 5, 6, 7])
    assert made.settings()["data.train_batch_size"] == 3
    assert "2 of 5 prompts are longer than max_prompt_length=5 tokens and are left out" in made.notes


@pytest.mark.slow
def test_prompts_that_are_all_too_long_are_refused_and_fix_makes_room(model: Path):
    with pytest.raises(ConfigError, match="each of the 2 training prompts is longer, 6 to 9 tokens") as caught:
        fitted(model, "--max_prompt_length", "5", lengths=[6, 9])
    assert caught.value.fix == {"data.max_prompt_length": 9}
    made = fitted(model, "--max_prompt_length", "5", "--fix", lengths=[6, 9])
    assert made.settings()["data.max_prompt_length"] == 9


def test_prompts_that_are_cut_are_all_kept(model: Path):
    made = fitted(
        model, "--max_prompt_length", "5", "data.filter_overlong_prompts=false", "data.truncation=left", lengths=[6, 9]
    )
    assert made.settings()["data.train_batch_size"] == 2


def test_a_model_that_is_not_here_is_counted_by_the_engine():
    assert fitted(Path("Qwen/Qwen2.5-7B"), lengths=[10_000] * 4).settings()["data.train_batch_size"] == 4

"""Rewards that are models, with tiny ones made here: a sequence-classification head, and a causal model as a judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reward_funcs import Sample, Score, build_reward
from reward_funcs.models.reward_model import _text

pytestmark = pytest.mark.slow
PAD, END = "<|endoftext|>", "<|im_end|>"
VOCABULARY = 258
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {{ m.content }} <|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)


def tokenizer(chat_template: str | None, pad: str | None = None) -> Any:
    """Qwen2's own, with a token for every byte: AutoTokenizer knows it by the model's type."""
    from tokenizers import pre_tokenizers
    from transformers import Qwen2Tokenizer

    words = [PAD, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Qwen2Tokenizer(
        vocab={word: i for i, word in enumerate(words)}, merges=[], unk_token=PAD, pad_token=PAD, eos_token=END
    )
    made.pad_token = pad
    made.chat_template = chat_template
    return made


def save(folder: Path, kind: str, chat_template: str | None = TEMPLATE, pad: str | None = None, **settings: Any) -> str:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=260, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=None, eos_token_id=1, bos_token_id=None, **settings,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    if kind == "Qwen2ForSequenceClassification":
        torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    tokenizer(chat_template, pad).save_pretrained(folder)
    return str(folder)


SAMPLES = [
    Sample("s", "one", "", prompt="two"),
    Sample("s", "one two three one two three", "", prompt=[{"role": "user", "content": "three"}]),
    Sample("s", "three", "", prompt=None),
    Sample("s", "two two", "", prompt="one one"),
]


def scores(reward: Any, samples: list[Sample]) -> list[float]:
    got = reward.attempts(samples)
    assert all(isinstance(one, Score) for one in got), got
    return [one.score for one in got]


@pytest.mark.parametrize("pad", [PAD, None])
def test_a_reward_model_gives_its_own_number_whatever_the_batch(tmp_path, pad):
    # S3-10, S0-07, S1-16: padding must not be read as the last token
    import torch
    from transformers import AutoModelForSequenceClassification

    path = save(tmp_path, "Qwen2ForSequenceClassification", pad=pad, num_labels=1)
    together = scores(build_reward(names=f"reward_model:{path}:device=cpu"), SAMPLES)
    alone = scores(build_reward(names=f"reward_model:{path}:batch=1:device=cpu"), SAMPLES)
    assert together == pytest.approx(alone, abs=1e-5)
    model = AutoModelForSequenceClassification.from_pretrained(path)
    for sample, score in zip(SAMPLES, together, strict=True):
        text = _text(tokenizer(TEMPLATE), sample)
        ids = tokenizer(TEMPLATE)(text, return_tensors="pt").input_ids
        model.config.pad_token_id = None
        with torch.inference_mode():
            assert float(model(ids).logits) == pytest.approx(score, abs=1e-5)
    assert len({round(score, 4) for score in together}) == 4


def test_the_template_is_the_reward_model_s_own():
    made = tokenizer(TEMPLATE)
    assert _text(made, SAMPLES[0]) == "user : two <|im_end|>assistant : one <|im_end|>"
    assert _text(tokenizer(None), SAMPLES[0]) == "two\none"


def test_a_head_with_labels_gives_a_probability(tmp_path):
    path = save(tmp_path, "Qwen2ForSequenceClassification", num_labels=3)
    (failed,) = build_reward(names=f"reward_model:{path}:device=cpu").attempts(SAMPLES[:1])
    assert "has 3 labels; say whose probability" in str(failed)
    by_label = [scores(build_reward(names=f"reward_model:{path}:label={k}:device=cpu"), SAMPLES)[0] for k in range(3)]
    assert sum(by_label) == pytest.approx(1.0, abs=1e-5)
    assert all(0 < value < 1 for value in by_label)


def test_a_local_judge_answers_in_batches(tmp_path):
    # S1-16: its own tokenizer and template; a random model says no score, and that has a stated outcome
    path = save(tmp_path, "Qwen2ForCausalLM")
    reward = build_reward(names=f"llm_judge:{path}:max_tokens=8:batch=3:device=cpu:unreadable=0.25")
    assert scores(reward, SAMPLES) == [0.25] * 4
    (failed, *_) = build_reward(names=f"llm_judge:{path}:max_tokens=8:device=cpu").attempts(SAMPLES)
    assert "the judge gave no score from 0 to 10" in str(failed)


def test_a_local_judge_s_score_is_read(tmp_path):
    import torch
    from transformers import Qwen2ForCausalLM

    path = save(tmp_path, "Qwen2ForCausalLM", TEMPLATE.replace("assistant : ", "\n"), tie_word_embeddings=False)
    model = Qwen2ForCausalLM.from_pretrained(path)
    ids = tokenizer(None).convert_tokens_to_ids
    with torch.no_grad():  # says "Score: 7": each character is followed by the next, and any other one by S
        for name, weight in model.named_parameters():
            weight.zero_() if "norm" not in name else weight.fill_(1.0)
        following = {"S": "c", "c": "o", "o": "r", "r": "e", "e": ":", ":": "\u0120", "\u0120": "7", "7": END}
        after = dict.fromkeys(range(VOCABULARY), ids("S")) | {ids(one): ids(two) for one, two in following.items()}
        model.model.embed_tokens.weight[range(VOCABULARY), range(VOCABULARY)] = 1.0
        model.lm_head.weight[list(after.values()), list(after)] = 1.0
    model.save_pretrained(path)
    assert scores(build_reward(names=f"llm_judge:{path}:max_tokens=20:device=cpu"), SAMPLES) == [0.7] * 4

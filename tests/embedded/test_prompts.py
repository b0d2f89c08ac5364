"""Prompts: the right tokens, in an order that a resumed run repeats."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, Qwen2Config

from data_prep.errors import DataError
from grpo.embedded.prompts import Encoder, Prompt, batches, encode, hash_seed, streamed
from grpo.embedded.scratch import make_model, make_tokenizer
from grpo.engine import EngineError
from tests.embedded.conftest import tiny_policy


def _row(text, index=0, **extra):
    chat = [{"role": "user", "content": text}]
    return {
        "prompt": chat,
        "data_source": "math_reasoning",
        "ground_truth": "3",
        "extra_info": {"index": index, **extra},
    }


def _encoder(tokenizer=None, template=None, max_length=50, truncation="filter"):
    tokenizer = tokenizer or make_tokenizer("bytes")
    return Encoder(tokenizer, template=template, max_length=max_length, truncation=truncation)


def _prompts(count):
    return [Prompt([index], str(index), "s", "", {}) for index in range(count)]


def _numbers(stream, count):
    return [[prompt.ids[0] for prompt in batch] for batch in itertools.islice(stream, count)]


def test_the_chat_template_is_applied_once_and_the_reward_gets_the_other_columns():  # S4-15, S3-03
    tokenizer = make_tokenizer("bytes")
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    prompt = _encoder(tokenizer)(_row("1+2=?", difficulty="easy"))
    assert prompt.text == "<user>1+2=?<assistant>"
    assert tokenizer.decode(prompt.ids) == prompt.text
    assert prompt.extra_info == {"index": 0, "difficulty": "easy"}


def test_a_prompt_that_was_templated_by_hand_is_left_as_it_is():  # S0-03, S0-04
    prompt = _encoder(template="plain", max_length=99)(_row("<|im_start|>user\nWho is a knight?<|im_end|>\n<think>"))
    assert prompt.text == "<|im_start|>user\nWho is a knight?<|im_end|>\n<think>"


def _bos_tokenizer():
    """Adds <|endoftext|> before any text, as Llama's does with <s>."""
    tokenizer = make_tokenizer("bytes")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return tokenizer


def test_pre_templated_text_is_passed_untouched_token_for_token():  # S0-03, S0-04
    tokenizer = _bos_tokenizer()
    own = tokenizer.chat_template
    text = "<|endoftext|><|im_end|>Who is a knight?\n<think>"
    prompt = _encoder(tokenizer, template="none", max_length=99)(_row(text))
    assert prompt.text == text
    assert prompt.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert prompt.ids[:2] == [0, 1]  # one begin token, the one that was written
    assert tokenizer.chat_template == own  # which is exported with the model
    plain = _encoder(_bos_tokenizer(), template="plain", max_length=99)(_row("1+2=?"))
    assert plain.ids[0] == 0  # plain text gets what the tokenizer puts around any text
    assert plain.ids[1:] == tokenizer("1+2=?", add_special_tokens=False)["input_ids"]


def test_a_conversation_in_the_data_is_templated_turn_by_turn():
    tokenizer = make_tokenizer("bytes")
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    turns = [("system", "s"), ("user", "1+2=?"), ("assistant", "3"), ("user", "and 4?")]
    row = _row("") | {"prompt": [{"role": role, "content": text} for role, text in turns]}
    assert _encoder(tokenizer, max_length=99)(row).text == "<system>s<user>1+2=?<assistant>3<user>and 4?<assistant>"
    # without a template: a conversation says who speaks, a single message is its text
    bare = make_tokenizer("bytes")
    bare.chat_template = None
    encoder = _encoder(bare, max_length=99)
    assert encoder(row).text == "System: s\nUser: 1+2=?\nAssistant: 3\nUser: and 4?\nAssistant:"
    assert encoder(_row("1+2=?")).text == "1+2=?"


def test_a_template_that_drops_or_refuses_the_system_prompt_is_refused():  # S3-19
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2=?"}]
    drops = make_tokenizer("bytes")
    drops.chat_template = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    assert _encoder(drops)(_row("1+2=?")).text == "1+2=?"  # nobody is hurt without one
    with pytest.raises(DataError, match=r"^the chat template drops the system prompt; .*--prompt_template$"):
        _encoder(drops)(_row("") | {"prompt": chat})
    refuses = make_tokenizer("bytes")
    refuses.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(DataError, match=r"does not take a prompt of the messages system, user \(System role not"):
        _encoder(refuses)(_row("") | {"prompt": chat})
    assert _encoder(drops, template="none")(_row("") | {"prompt": chat}).text == "Be brief.1+2=?"


def test_prompts_that_are_cut_are_counted():  # S0-16
    encoder = _encoder(max_length=6, truncation="left")
    encode([_row("12345"), _row("1234567890", 1), _row("abcdefghij", 2)], encoder)
    assert encoder.cut == 2


def test_a_tokenizer_without_a_template_gives_plain_text_and_says_so():
    tokenizer = make_tokenizer("bytes")
    tokenizer.chat_template = None
    encoder = _encoder(tokenizer)
    assert not encoder.has_template
    assert encoder(_row("1+2=?")).text == "1+2=?"
    assert _encoder().has_template


def test_what_happens_to_a_prompt_that_is_too_long():  # S0-16
    rows = [_row("12345"), _row("1234567890", 1)]
    prompts, left_out = encode(rows, _encoder(max_length=6))  # the template adds a line end
    assert ([prompt.text for prompt in prompts], left_out) == (["12345\n"], 1)
    tokenizer = make_tokenizer("bytes")
    for side, kept in (("left", "67890\n"), ("right", "123456")):
        (prompt,), _ = encode([rows[1]], _encoder(tokenizer, max_length=6, truncation=side))
        assert tokenizer.decode(prompt.ids) == kept
    with pytest.raises(DataError, match=r"record 1: the prompt has 11 tokens, over data.max_prompt_length=6"):
        _encoder(max_length=6, truncation="error")(rows[1])


def test_every_epoch_sees_every_prompt_once_in_an_order_of_its_own():
    stream = batches(_prompts(6), size=2, seed=1, shuffle=True, drop_last=True, first_step=0)
    first, second = _numbers(stream, 3), _numbers(stream, 3)
    for epoch in (first, second):
        assert sorted(number for batch in epoch for number in batch) == list(range(6))
    assert first != second


@pytest.mark.parametrize("drop_last", [True, False])  # S0-12
def test_a_resumed_run_sees_the_batches_that_an_undisturbed_one_would_have(drop_last):
    settings = {"size": 3, "seed": 7, "shuffle": True, "drop_last": drop_last}
    whole = _numbers(batches(_prompts(8), first_step=0, **settings), 9)
    assert [len(batch) for batch in whole[:3]] == ([3, 3, 3] if drop_last else [3, 3, 2])
    for done in range(9):
        assert _numbers(batches(_prompts(8), first_step=done, **settings), 9 - done) == whole[done:]


def test_without_shuffle_the_order_is_the_files():
    assert _numbers(batches(_prompts(4), size=2, seed=1, shuffle=False, drop_last=True, first_step=0), 3) == [
        [0, 1],
        [2, 3],
        [0, 1],
    ]


def test_fewer_prompts_than_a_batch_are_refused():
    with pytest.raises(EngineError, match="3 prompts do not fill one batch of 4"):
        next(batches(_prompts(3), size=4, seed=1, shuffle=True, drop_last=True, first_step=0))


def test_prompts_made_during_training_are_drawn_as_they_are_needed():  # S1-28
    drawn = []

    def records():
        for index in itertools.count():
            drawn.append(index)
            yield _row(f"{index}+1=?", index)

    stream = streamed(records(), _encoder(), size=2, first_step=1)
    assert [prompt.text for prompt in next(stream)] == ["2+1=?\n", "3+1=?\n"]
    assert drawn == [0, 1, 2, 3]  # those of the first step were drawn and passed over, none ahead of its time


def test_seeds_for_different_purposes_differ_and_stay_the_same_for_ever():
    seeds = {hash_seed(1, "order", 0), hash_seed(1, "order", 1), hash_seed(1, "sample", 0), hash_seed(2, "order", 0)}
    assert len(seeds) == 4
    assert hash_seed(42, "sample", 1) == int.from_bytes(hashlib.sha256(b"(42, 'sample', 1)").digest()[:8], "big") >> 1


@pytest.mark.parametrize("vocabulary", ["bytes", "characters"])
def test_a_new_tokenizer_reads_any_text_and_is_the_same_when_transformers_opens_its_folder(
    vocabulary, tmp_path
):  # S2-03
    text = "请计算：15 + 27 = ?\nWhat's  it?\t😀"
    tokenizer = make_tokenizer(vocabulary, [text])
    tokenizer.save_pretrained(tmp_path)
    Qwen2Config().save_pretrained(tmp_path)
    for opened in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = opened(text)["input_ids"]
        assert opened.decode(ids) == text
        assert len(ids) == len(text if vocabulary == "characters" else text.encode())
        assert opened.eos_token_id not in ids
        assert len(opened) == len(tokenizer)
        assert opened.decode(opened("从未见过")["input_ids"]) == "从未见过"


def test_a_new_model_has_the_architecture_that_was_asked_for_and_depends_on_its_seed():
    policy = tiny_policy()
    assert policy.model.config.model_type == "qwen2"
    assert policy.stop_ids == [policy.tokenizer.eos_token_id]
    tokenizer = make_tokenizer("bytes")
    shape = {"hidden_size": 32, "num_layers": 3, "num_heads": 4, "max_length": 64}
    a, b, c = (make_model(tokenizer, seed=seed, **shape) for seed in (1, 1, 2))
    assert (a.config.hidden_size, a.config.num_hidden_layers, a.config.num_attention_heads) == (32, 3, 4)
    assert all((x == y).all() for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert (a.lm_head.weight != c.lm_head.weight).any()
    with pytest.raises(EngineError, match="does not split into 3 heads"):
        make_model(tokenizer, seed=1, **{**shape, "num_heads": 3})
    with pytest.raises(EngineError, match="bytes, characters or words"):
        make_tokenizer("letters")

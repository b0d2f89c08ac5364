"""Models with an encoder and a decoder: prompt into the one, response out of the other, all else as with a decoder."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from data_prep.errors import DataError
from grpo.__main__ import main
from grpo.embedded.adapter import Lora, attach
from grpo.embedded.choosing import Sampling
from grpo.embedded.copies import before_adapter
from grpo.embedded.encoder_decoder import EncoderDecoderPolicy
from grpo.embedded.models import make_policy, read_model, read_tokenizer
from grpo.embedded.passes import log_probs
from grpo.embedded.policy import Policy
from grpo.embedded.prompts import Encoder
from grpo.embedded.rollout import sample
from grpo.embedded.scoring import responses_text
from grpo.embedded.scratch import make_encoder_decoder, make_tokenizer
from grpo.embedded.sft import Demonstration, keeps_apart, micro_batches, rows_of, summed_loss
from grpo.engine import EngineError
from tests.embedded.tiny_models import gpt2, llama, model_folder

_HALVES = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
_BART = {"d_model": 32, **_HALVES, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
_DROPPING = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "decoder_layerdrop"), 0.5)
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
FAMILIES: dict[str, transformers.PreTrainedConfig] = {
    "t5": transformers.T5Config(**_T5, dropout_rate=0.5),
    "t5 v1.1, three layers behind two": transformers.T5Config(
        **_T5, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "bart": transformers.BartConfig(**_BART, **_DROPPING, decoder_start_token_id=1),
    "mt5": transformers.MT5Config(**_T5),
    "pegasus": transformers.PegasusConfig(**_BART, **_DROPPING, decoder_start_token_id=0),
    "mbart": transformers.MBartConfig(**_BART, decoder_start_token_id=1),
}
TRAINED = ("t5", "bart", "mt5", "pegasus")
PROMPTS = ("1+2=?", "a much longer prompt than that", "abc")
# Of a random model's rubbish, some is more varied. A special token in what it is given would count.
REWARD = """
def compute_score(data_source, solution_str, ground_truth):
    assert not any(word in solution_str for word in ("<|endoftext|>", "<|im_end|>", "</s>", "<pad>"))
    return len(set(solution_str)) / 12
"""


def folder_of(family: str, folder: Path) -> Path:
    """A model folder with random weights and a token for every byte."""
    config, tokenizer = copy.deepcopy(FAMILIES[family]), make_tokenizer("bytes")
    config.vocab_size = len(tokenizer)
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, None, 1
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "t5" in family and "shared" in name:
                weight.mul_(0.2)  # T5 begins with logits of a size that rounds in the fifth digit
            elif weight.dim() == 2 and "t5" not in family:
                weight.mul_(3.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def policy_of(family: str, folder: Path) -> Policy:
    path = str(folder_of(family, folder))
    return make_policy(read_model(path), read_tokenizer(path), torch.device("cpu"), torch.float32)


def ids(policy: Policy, *texts: str) -> list[list[int]]:
    return [policy.tokenizer(text)["input_ids"] for text in texts]


def small(seed: int = 0) -> Policy:
    """A new T5 of two layers over characters."""
    tokenizer = make_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz 0123456789+=?"])
    model = make_encoder_decoder(tokenizer, hidden_size=32, num_layers=2, num_heads=2, seed=seed)
    return make_policy(model, tokenizer, torch.device("cpu"), torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_the_update_and_a_plain_forward_pass_agree(family, tmp_path):  # S1-01, S1-21
    """With prompts of different length, padded: absolute positions (BART, Pegasus) count from the prompt's start."""
    policy = policy_of(family, tmp_path / "m")
    prompts = ids(policy, *PROMPTS)
    rollouts = sample(policy, prompts, Sampling(n=3, max_length=14, temperature=0.7), seed=1)
    again = log_probs(policy, rollouts, temperature=0.7, max_tokens=9999)
    assert_close(again, rollouts.log_probs * rollouts.response_mask, atol=1e-5, rtol=0)
    for row in range(9):
        length = int(rollouts.response_mask[row].sum())
        said = rollouts.response_ids[row, :length].tolist()
        with torch.no_grad():
            logits = policy.model(
                input_ids=torch.tensor([prompts[row // 3]]),
                decoder_input_ids=torch.tensor([[FAMILIES[family].decoder_start_token_id, *said[:-1]]]),
            ).logits
        plain = (logits[0] / 0.7).log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0]
        assert_close(again[row, :length], plain, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_greedy_is_what_transformers_generates_and_the_encoder_runs_once(tmp_path):  # S1-01
    policy = policy_of("pegasus", tmp_path / "m")
    prompts, calls = ids(policy, *PROMPTS), []
    hook = policy.model.get_encoder().register_forward_hook(lambda _, __, out: calls.append(len(out[0])))
    ours = sample(policy, prompts, Sampling(n=2, max_length=20, temperature=0.0), seed=0)
    assert calls == [3]  # three prompts, not six responses, and once for all their tokens
    log_probs(policy, ours, temperature=1.0, max_tokens=9999)
    assert calls == [3, 3]
    hook.remove()
    for row, prompt in enumerate(prompts):
        theirs = policy.model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, 1:].tolist()
        length = int(ours.response_mask[2 * row].sum())
        # generate() makes the last token of what it cuts an end token (forced_eos_token_id); a cut response stays cut
        assert ours.response_ids[2 * row, : min(length, 19)].tolist() == theirs[: min(length, 19)]


@pytest.mark.slow
def test_a_group_of_64_meets_in_one_encoder_with_all_its_gradients():  # S1-04
    policy = small()
    rollouts = sample(policy, ids(policy, "a+b=?", "1234567"), Sampling(n=64, max_length=6), seed=3)
    assert rollouts.uid.bincount().tolist() == [64, 64]
    grads = []
    for parts in (1, 32):  # at once, and in groups of four rows cut out of it
        policy.model.zero_grad()
        for rows in torch.arange(128).chunk(parts):
            part = rollouts.select(rows)
            chosen, _ = policy.log_probs(
                part.prompt_ids, part.prompt_mask, part.response_ids, part.response_mask, temperature=1.0
            )
            ((chosen * part.response_mask).sum() / 128).backward()
        grads.append(policy.model.encoder.block[0].layer[0].SelfAttention.v.weight.grad.clone())
    assert grads[0].abs().max() > 1e-3
    assert_close(grads[0], grads[1], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_token_that_a_model_is_forced_to_begin_with_is_no_part_of_the_response(tmp_path):
    """BART's <s>, mBART's language: it is read and never chosen, so it has no log-prob to learn from."""
    folder = folder_of("mbart", tmp_path / "m")
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"forced_bos_token_id": 77}))
    tokenizer = read_tokenizer(str(folder))
    policy = make_policy(read_model(str(folder)), tokenizer, torch.device("cpu"), torch.float32)
    assert isinstance(policy, EncoderDecoderPolicy)
    assert policy.beginning == [1, 77]
    prompt = ids(policy, "abc")
    ours = sample(policy, prompt, Sampling(n=1, max_length=12, temperature=0.0), seed=0)
    theirs = policy.model.generate(torch.tensor(prompt), max_new_tokens=12, do_sample=False)[0].tolist()
    assert theirs[:2] == [1, 77]
    assert ours.response_ids[0, :10].tolist() == theirs[2:12]
    again = log_probs(policy, ours, temperature=1.0, max_tokens=999)
    assert_close(again, ours.log_probs * ours.response_mask, atol=1e-5, rtol=0)


def test_a_model_that_names_no_beginning_is_refused(tmp_path):
    folder = folder_of("t5", tmp_path / "m")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        settings.pop("decoder_start_token_id", None)
        (folder / name).write_text(json.dumps(settings))
    model = read_model(str(folder))
    with pytest.raises(EngineError, match="names a decoder_start_token_id"):
        make_policy(model, read_tokenizer(str(folder)), torch.device("cpu"), torch.float32)


def test_no_special_token_reaches_the_text_that_is_scored(tmp_path):  # S1-18
    """T5's own tokenizer: <pad>, </s> and <extra_id_0> inside and behind a response, and padding of the batch."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁a", -1.0), ("▁b", -1.0), ("c", -1.0)]
    tokenizer = transformers.T5Tokenizer(vocab=[*pieces, ("<extra_id_0>", 0.0)], extra_ids=1)
    policy = small()
    policy.tokenizer = tokenizer
    rollouts = sample(policy, [[4, 5]], Sampling(n=2, max_length=6), seed=0)
    extra = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    rollouts.response_ids = torch.tensor([[4, 0, 5, extra, 6, 1], [5, 4, 1, 0, 0, 0]])
    rollouts.response_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    assert responses_text(policy, rollouts) == ["a bc", "b a"]


def test_the_loss_of_demonstrations_is_that_of_transformers_with_masked_labels():  # S1-18, S1-23
    policy = small()
    pairs = (("a+b=?", "12"), ("0", "a long answer"), ("12345", "7"))
    items = [Demonstration(*ids(policy, asked, said)) for asked, said in pairs]
    width = max(len(item.response) for item in items)
    labels = torch.tensor([item.response + [-100] * (width - len(item.response)) for item in items])
    for item, label in zip(items, labels, strict=True):
        alone = policy.model(input_ids=torch.tensor([item.prompt]), labels=label[None]).loss * len(item.response)
        assert_close(summed_loss(policy, [[item]]), alone, atol=1e-4, rtol=1e-5)
    together = summed_loss(policy, [[item] for item in items])
    assert_close(together, sum(summed_loss(policy, [[item]]) for item in items), atol=1e-4, rtol=1e-5)
    assert not keeps_apart(policy, items[0], items[1])  # an encoder's row is one prompt
    assert len(micro_batches(rows_of(items, width=99, packing=False), max_tokens=99)) == 1


def test_an_encoder_reads_a_text_with_its_end_token_and_keeps_it_when_cut(tmp_path):
    tokenizer = transformers.T5Tokenizer(
        vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁a", -1.0), ("▁b", -1.0)], extra_ids=0
    )
    row = {"prompt": [{"role": "user", "content": "a b a b"}], "data_source": "", "ground_truth": "", "extra_info": {}}

    def read(most: int, truncation: str, *, whole: bool = True) -> list[int]:
        made = Encoder(tokenizer, template=None, max_length=most, truncation=truncation, whole=whole)(row)
        assert made is not None
        return made.ids

    assert read(9, "error") == [4, 5, 4, 5, 1]
    assert read(3, "right") == [4, 5, 1]
    assert read(3, "left") == [4, 5, 1]
    assert read(9, "error", whole=False) == [4, 5, 4, 5]
    assert read(3, "right", whole=False) == [4, 5, 4]


def test_a_conversation_is_refused_where_an_encoder_has_no_template_for_one():
    policy = small()
    policy.tokenizer.chat_template = None
    encoder = Encoder(policy.tokenizer, template=None, max_length=99, truncation="error", whole=True)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert encoder.text(turns[1:]) == "hi"
    with pytest.raises(DataError, match=r"reads one text, not a conversation \(system, user\)"):
        encoder.text(turns)
    joined = "{% for m in messages %}{{ m.content }} {% endfor %}"
    given = Encoder(policy.tokenizer, template=joined, max_length=99, truncation="error", whole=True)
    assert given.text(turns) == "Be brief. hi "


def test_words_of_the_prompt_are_not_held_against_the_response():
    """A repetition penalty counts what the decoder said: a summary may use the words of its text."""
    policy = small()
    plain = Sampling(n=1, max_length=1, temperature=0.0)
    halves = [[list(range(start, len(policy.tokenizer), 2))] for start in (0, 1)]  # of all tokens
    firsts = [sample(policy, prompt, plain, seed=0).response_ids for prompt in halves]
    prompt, first = next(pair for pair in zip(halves, firsts, strict=True) if int(pair[1]) in pair[0][0])
    punished = Sampling(n=1, max_length=1, temperature=0.0, repetition_penalty=50.0)
    assert torch.equal(sample(policy, prompt, punished, seed=0).response_ids, first)


@pytest.mark.slow
def test_with_lora_the_model_without_its_adapter_is_the_reference(tmp_path):
    policy = policy_of("bart", tmp_path / "m")
    rollouts = sample(policy, ids(policy, *PROMPTS), Sampling(n=2, max_length=8), seed=0)
    before = log_probs(policy, rollouts, temperature=1.0, max_tokens=9999)
    adapted = attach(policy.model, Lora(4, 8, "all-linear", "m"), seed=0)
    assert adapted.peft_config["default"].task_type == "SEQ_2_SEQ_LM"
    policy.adapter = adapted
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.2)
    assert any("encoder_attn" in name for name in policy.own())  # the decoder's attention to the encoder too
    reference = before_adapter(policy, moves=False)
    assert_close(log_probs(reference, rollouts, temperature=1.0, max_tokens=9999), before, atol=1e-5, rtol=0)
    assert (log_probs(policy, rollouts, temperature=1.0, max_tokens=9999) - before).abs().max() > 0.1


def _train(folder: Path, *arguments: str) -> int:
    rows = [{"prompt": f"text {i}: 15 + {i}", "ground_truth": "42", "data_source": "notes"} for i in range(6)]
    Path("prompts.json").write_text(json.dumps(rows))
    Path("demos.json").write_text(json.dumps([{"prompt": row["prompt"], "response": "ab"} for row in rows]))
    Path("reward.py").write_text(REWARD)
    fixed = ["--data=prompts.json", f"--model={folder}", "--reward_func=reward.py", "--max_prompt_length=40"]
    fixed += ["--max_response_length=12", "--train_batch_size=2", "--rollout_n=4", "--max_steps=2", "--lr=1e-4"]
    return main([*fixed, "--device=cpu", "launcher.force=true", *arguments])


def _metrics(folder: str = "outputs") -> list[dict]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("family", TRAINED)
def test_two_steps_of_the_real_command(family, in_folder, capsys):  # S1-01, S1-03, S1-11, S1-18
    """The reward is a file of the user's, as for any model; it fails on a special token."""
    folder = folder_of(family, in_folder / "模型")
    more = ["--ppo_epochs=2", "--sft_warmup=2", "--sft_data=demos.json"]
    assert _train(folder, *more) == 0, capsys.readouterr().err
    steps = _metrics()
    assert [line["step"] for line in steps] == [0, 1, 2]
    assert steps[1]["grad_norm"] > 0
    assert steps[1]["reward_std"] > 0
    assert steps[1]["reward/errors"] == 0
    assert abs(steps[1]["ppo_kl"]) < 0.05  # the first pass measures nothing against itself; dropout would show here
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (folder, "outputs/checkpoints/final"))
    assert any(not torch.equal(*pair) for pair in zip(before.parameters(), after.parameters(), strict=True))
    assert "Caching is incompatible" not in capsys.readouterr().err
    assert main(["chat", "--prompt", "hello", "--max_response_length", "6", "--device", "cpu"]) == 0
    made = AutoTokenizer.from_pretrained("outputs/checkpoints/final")("hello", return_tensors="pt")
    assert after.generate(made["input_ids"], max_new_tokens=6).shape[1] <= 8


@pytest.mark.slow
def test_a_group_of_64_and_an_adapter_that_stops_and_goes_on(in_folder, capsys):  # S1-04, S1-30
    folder = folder_of("t5", in_folder / "m")
    more = ("--lora_rank=4", "--rollout_n=64", "--train_batch_size=1", "--save_freq=1", "launcher.export.lora=adapter")
    assert _train(folder, *more) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in Path("outputs/completions.jsonl").read_text().splitlines()]
    assert sum(row["split"] == "train" and row["step"] == 1 for row in rows) == 64
    weights, steps = load_file("outputs/checkpoints/final/adapter_model.safetensors"), _metrics()
    # as if it had been killed after step 1
    for name in ("summary.json", "report.html"):
        Path("outputs", name).unlink()
    for name in ("final", "global_step_2"):
        shutil.rmtree(Path("outputs/checkpoints", name))
    assert main(["--resume"]) == 0
    again = load_file("outputs/checkpoints/final/adapter_model.safetensors")
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert [line["grad_norm"] for line in _metrics()[1:]] == [line["grad_norm"] for line in steps[1:]]


@pytest.mark.slow
def test_sft_alone_says_that_it_does_not_pack(in_folder, capsys):  # S1-23
    folder = folder_of("bart", in_folder / "m")
    Path("demos.json").write_text(json.dumps([{"prompt": f"text {i}", "response": "ab"} for i in range(4)]))
    words = ["sft", "--data=demos.json", f"--model={folder}", "--epochs=2", "--train_batch_size=2", "--device=cpu"]
    assert main([*words, "--max_prompt_length=40", "--max_response_length=12", "--lr=1e-2"]) == 0
    assert "bart models cannot keep demonstrations in one row apart" in capsys.readouterr().out
    losses = [line["val_loss"] for line in _metrics("outputs_sft") if "val_loss" in line]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_decoder_only_model_becomes_an_encoder_and_a_decoder(in_folder, capsys):  # S1-01
    folder = model_folder(gpt2(), in_folder / "g")
    turned = "launcher.encoder_decoder=true"
    assert _train(folder, turned, "--ppo_epochs=2", "--sft_warmup=2", "--sft_data=demos.json") == 0
    assert "newly initialized" not in capsys.readouterr().err
    final = AutoModelForSeq2SeqLM.from_pretrained("outputs/checkpoints/final")
    assert final.config.model_type == "encoder-decoder"
    assert abs(_metrics()[1]["ppo_kl"]) < 0.05
    assert main(["chat", "--prompt", "hello", "--max_response_length", "6", "--device", "cpu"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "more", "says"),
    [
        ("bart", ["--max_prompt_length=65"], "its encoder has 64 positions; --max_prompt_length 65 is over them"),
        ("bart", ["--max_response_length=65"], "its decoder has 64 positions; --max_response_length 65 is over them"),
        ("t5", ["actor_rollout_ref.model.tokenizer_path=big"], "the tokenizer has 260 tokens and the model's"),
        ("t5", ["--engine=verl"], "is an encoder-decoder model (T5ForConditionalGeneration), which verl cannot train"),
        ("t5", ["launcher.encoder_decoder=true", "--lora_rank=4"], "attention to the encoder is new"),
        ("t5", ["--system=Be brief."], "has an encoder and no chat template, and so no place for a system prompt"),
    ],
)
def test_what_cannot_be_is_said_before_any_weight_is_read(family, more, says, in_folder, capsys):  # S0-17
    folder = folder_of(family, in_folder / "m")
    make_tokenizer("characters", ["请"]).save_pretrained("big")
    (folder / "model.safetensors").write_bytes(b"not weights")
    (folder / "chat_template.jinja").unlink()  # T5 and BART have none
    assert _train(folder, *more) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert sum(says in line for line in lines) == 1


@pytest.mark.slow
def test_a_model_whose_decoder_cannot_look_at_an_encoder_is_refused_by_its_kind(in_folder, capsys):  # S1-01
    folder = model_folder(llama(), in_folder / "m")
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert _train(folder, "launcher.encoder_decoder=true") == 2
    assert "llama models have no attention to an encoder" in capsys.readouterr().err

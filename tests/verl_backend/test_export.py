"""Exports of verl's checkpoints: the same weights, in the dtype that was said, whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from grpo import __main__ as command_line
from grpo.engine import EngineError
from grpo.publish import damaged
from grpo.verl_backend.finishing.export import actor_of, correct_saved_model, export
from grpo.verl_backend.inside import shards
from grpo.verl_backend.inside.shards import MergeError, open_shards

STEP = Path("checkpoints") / "global_step_3"


@dataclass(frozen=True)
class ThisPython:
    """The environment of the tests has all that merging needs, but verl."""

    python: Path = Path(sys.executable)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, repo) -> Path:
    """Folders named by kind, each with the checkpoint that two real FSDP2 ranks wrote."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "tests.verl_backend.fsdp_ranks", str(folder)]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def _merge(run: Path, folder: Path, *words: str, code: int = 0) -> Path:
    from grpo.verl_backend.inside import merge

    folder.mkdir(parents=True)
    assert merge.main([str(run / STEP / "actor"), str(folder), *words]) == code
    return folder


def _same(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    from transformers import AutoModelForCausalLM

    opened = AutoModelForCausalLM.from_pretrained(folder)
    weights = opened.state_dict()
    for name, weight in expected.items():
        assert weights[name].dtype == weight.dtype, name
        assert torch.equal(weights[name], weight), name
    assert weights.keys() == expected.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tied", "untied", "replicated", "experts"])
def test_a_merged_model_opens_as_what_was_trained_bit_for_bit_in_float32(runs, tmp_path, kind):
    folder = _merge(runs / kind, tmp_path / "out")
    _same(folder, load_file(runs / kind / STEP / "full.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "float32"  # the trainer's says bfloat16, and would have it rounded on opening
    assert "attn_implementation" not in config  # a machine without flash-attn opens it too
    assert config["tie_word_embeddings"] == (kind == "tied")


@pytest.mark.slow
def test_tied_embeddings_are_stored_once_and_experts_under_the_names_that_others_read(runs, tmp_path):
    tied = load_file(_merge(runs / "tied", tmp_path / "tied") / "model.safetensors")
    assert "lm_head.weight" not in tied
    assert "model.embed_tokens.weight" in tied
    stored = load_file(_merge(runs / "experts", tmp_path / "experts") / "model.safetensors")
    full = load_file(runs / "experts" / STEP / "full.safetensors")
    both = full[
        "model.layers.0.mlp.experts.gate_up_proj"
    ]  # [experts, gate and up, hidden]: one tensor in transformers 5
    assert torch.equal(stored["model.layers.0.mlp.experts.2.gate_proj.weight"], both[2, :16])
    assert torch.equal(stored["model.layers.0.mlp.experts.2.up_proj.weight"], both[2, 16:])


@pytest.mark.slow
def test_the_tokenizer_comes_with_its_chat_template(runs, tmp_path):
    from transformers import AutoTokenizer, GenerationConfig

    folder = _merge(runs / "tied", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "1+2=?"}], tokenize=False) == "1+2=?\n"
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 1


@pytest.mark.slow
def test_a_dtype_is_what_was_asked_or_trained_and_is_said(runs, tmp_path, capsys):
    asked = _merge(runs / "untied", tmp_path / "asked", "--dtype", "bfloat16")
    full = load_file(runs / "untied" / STEP / "full.safetensors")
    _same(asked, {name: weight.bfloat16() for name, weight in full.items()})
    assert json.loads((asked / "config.json").read_text())["dtype"] == "bfloat16"
    assert "dtype bfloat16, as asked (trained in float32)" in capsys.readouterr().out
    kept = _merge(runs / "bfloat16", tmp_path / "kept")
    _same(kept, load_file(runs / "bfloat16" / STEP / "full.safetensors"))
    assert "dtype bfloat16, as trained" in capsys.readouterr().out


@pytest.mark.slow
def test_every_part_of_a_configuration_names_the_dtype(tmp_path):
    from grpo.verl_backend.inside import model_folder
    from tests.verl_backend.fsdp_ranks import small_model

    # as of a model that also sees, and of one that transformers 4 wrote
    parts = {"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16", "hidden_size": 3}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(parts))
    (tmp_path / "out").mkdir()
    model_folder.write_config(tmp_path, tmp_path / "out", small_model(tied=False), torch.float32)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["torch_dtype"], written["text_config"]["dtype"]) == ("float32", "float32")
    assert written["vision_config"] == {}


@pytest.mark.slow
def test_a_rounded_export_changes_nothing_in_the_checkpoint(runs, tmp_path):
    files = sorted((runs / "untied" / STEP / "actor").glob("*.pt"))
    before = [file.read_bytes() for file in files]
    _merge(runs / "untied", tmp_path / "out", "--dtype", "bfloat16")
    assert [file.read_bytes() for file in files] == before


def _peft_model(full: dict[str, torch.Tensor]):
    """What was trained, put together by peft alone."""
    from tests.verl_backend import fsdp_ranks

    model = fsdp_ranks.with_lora(fsdp_ranks.small_model(tied=True))
    model.load_state_dict(full)
    return model.eval()


@pytest.mark.slow
def test_a_merged_adapter_is_what_peft_merges(runs, tmp_path, capsys):
    full = load_file(runs / "lora" / STEP / "full.safetensors")
    folder = _merge(runs / "lora", tmp_path / "out")
    expected = _peft_model(full).merge_and_unload().state_dict()
    untrained = full["base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"]
    assert (expected["model.layers.0.self_attn.q_proj.weight"] - untrained).abs().max() > 1e-3
    _same(folder, expected)
    assert "LoRA of rank 4 and alpha 6 on 6 layers" in capsys.readouterr().out


@pytest.mark.slow
def test_an_adapter_folder_opens_with_peft_on_its_base_and_keeps_its_scale_and_dtype(runs, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    full = load_file(runs / "lora" / STEP / "full.safetensors")
    trained = _peft_model(full)
    tokens = torch.tensor([[5, 9, 200, 31]])
    expected = trained(tokens).logits
    base = trained.unload()
    base.save_pretrained(tmp_path / "base")
    folder = _merge(runs / "lora", tmp_path / "out", "--lora", "adapter", "--base", str(tmp_path / "base"))
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 6)
    assert config["base_model_name_or_path"] == str(tmp_path / "base")
    assert {tensor.dtype for tensor in load_file(folder / "adapter_model.safetensors").values()} == {torch.float32}
    opened = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), folder)
    assert_close(opened(tokens).logits, expected, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_a_wrong_tensor_in_the_export_is_caught_by_its_logits(runs, tmp_path, monkeypatch, capsys):
    from grpo.verl_backend.inside import lora

    monkeypatch.setattr(lora.Lora, "scale", lambda self, layer: 1.0)  # alpha / r is 1.5
    _merge(runs / "lora", tmp_path / "out", code=2)
    assert "the exported model is not the trained one: its logits differ by up to" in capsys.readouterr().err


def _one_rank(run: Path, of: Path, weights: dict[str, torch.Tensor]) -> Path:
    """A checkpoint of a single FSDP1 rank, whose tensors are not cut. of: the run whose configuration it has."""
    actor = run / STEP / "actor"
    shutil.copytree(of / STEP / "actor", actor, ignore=shutil.ignore_patterns("*.pt", "fsdp_config.json"))
    torch.save(weights, actor / "model_world_size_1_rank_0.pt")
    return run


@pytest.mark.slow
def test_a_single_rank_without_dtensors_is_exported_too(runs, tmp_path):
    full = load_file(runs / "untied" / STEP / "full.safetensors")
    run = _one_rank(tmp_path / "run", runs / "untied", full)
    for name in ("model.safetensors", "model.safetensors.unmerged", "pytorch_model.bin"):  # verl's own, not ours
        (run / STEP / "actor" / "huggingface" / name).write_bytes(b"other weights")
    folder = _merge(run, tmp_path / "out")
    _same(folder, full)
    assert sorted(path.name for path in folder.glob("*.*") if path.suffix not in (".json", ".jinja")) == [
        "model.safetensors"
    ]


@pytest.mark.slow
def test_an_adapter_that_was_saved_alone_is_merged_into_the_model_it_began_from(runs, tmp_path, capsys):
    full = load_file(runs / "lora" / STEP / "full.safetensors")
    trained = _peft_model(full)
    run = _one_rank(tmp_path / "run", runs / "lora", {name: full[name] for name in full if "lora_" in name})
    _merge(run, tmp_path / "no", code=2)
    assert "has the adapter alone, and its base model is not known: name it with --model" in capsys.readouterr().err
    expected = {name: weight.clone() for name, weight in trained.merge_and_unload().state_dict().items()}
    _peft_model(full).unload().save_pretrained(tmp_path / "base")
    _same(_merge(run, tmp_path / "out", "--base", str(tmp_path / "base")), expected)


@pytest.mark.slow
def test_embeddings_that_training_pulled_apart_are_exported_as_two(runs, tmp_path, capsys):
    full = load_file(runs / "tied" / STEP / "full.safetensors")
    full["lm_head.weight"] = full["lm_head.weight"] + 1
    folder = _merge(_one_rank(tmp_path / "run", runs / "tied", full), tmp_path / "out")
    _same(folder, full)
    assert "lm_head.weight was trained apart from the weight it was tied to" in capsys.readouterr().out


@pytest.mark.slow
def test_what_cannot_be_exported_is_one_line(runs, tmp_path, capsys):
    full = load_file(runs / "untied" / STEP / "full.safetensors")
    nan = full | {"model.norm.weight": torch.full((24,), math.nan)}
    _merge(_one_rank(tmp_path / "nan", runs / "untied", nan), tmp_path / "1", code=2)
    assert "logits that are not numbers: training diverged" in capsys.readouterr().err
    other = full | {"model.norm.weight": torch.ones(23)}
    _merge(_one_rank(tmp_path / "other", runs / "untied", other), tmp_path / "2", code=2)
    said = capsys.readouterr().err
    assert "do not fit config.json: model.norm.weight is [23] in the shards and [24]" in said
    _merge(runs / "untied", tmp_path / "3", "--lora", "adapter", code=2)
    assert "was trained without LoRA" in capsys.readouterr().err
    run = _one_rank(tmp_path / "alpha", runs / "lora", load_file(runs / "lora" / STEP / "full.safetensors"))
    (run / STEP / "actor" / "lora_train_meta.json").unlink()
    _merge(run, tmp_path / "4", code=2)
    assert "does not tell lora_alpha" in capsys.readouterr().err
    _merge(runs / "lora", tmp_path / "5", "--lora", "adapter", code=2)
    assert "name it with --model" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_of_many_gigabytes_is_split_into_files_with_an_index(runs, tmp_path, monkeypatch):
    from grpo.verl_backend.inside import model_folder

    monkeypatch.setattr(model_folder, "LARGEST_FILE", 20_000)
    folder = _merge(runs / "untied", tmp_path / "out")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert set(index["weight_map"].values()) == set(files)
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) >= 3  # two of 24 864 bytes for 259 x 24 numbers each, and the layers
    full = load_file(runs / "untied" / STEP / "full.safetensors")
    assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in full.values())
    _same(folder, full)


@pytest.mark.slow
def test_an_export_is_published_whole_with_the_hash_of_every_file(runs, tmp_path):
    said: list[str] = []
    target = tmp_path / "一个 folder" / "final"
    checkpoint = runs / "tied" / STEP
    done = export(checkpoint, target, ThisPython(), say=said.append)
    assert done == target
    assert damaged(target) is None
    assert [path.name for path in target.parent.iterdir()] == ["final"]
    assert said[-1].startswith("compared with the trained weights: logits differ by at most 0 of")
    target.joinpath("model.safetensors").write_bytes(b"")
    export(checkpoint, target, ThisPython(), say=said.append)  # replaces what is ours
    assert damaged(target) is None


@pytest.mark.slow
def test_a_failed_export_leaves_nothing_and_says_which_rank_is_missing(runs, in_folder):
    run = in_folder / "outputs"
    shutil.copytree(runs / "tied" / STEP, run / STEP)
    (run / STEP / "actor" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(EngineError, match=r"missing model_world_size_2_rank_1\.pt; copy") as problem:
        export(run / STEP, run / "out", ThisPython(), say=print)
    assert "\n" not in str(problem.value)
    assert not (run / "out").exists()
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints"]


@pytest.mark.slow
def test_a_child_that_dies_is_told_with_its_last_line(runs, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'No module named torch' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(EngineError, match="the merge failed: No module named torch; to see all of it: "):
        export(runs / "tied" / STEP, tmp_path / "out", ThisPython(fake))
    fake.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(EngineError, match="was ended by signal 9, as when memory runs out"):
        export(runs / "tied" / STEP, tmp_path / "out", ThisPython(fake))
    with pytest.raises(EngineError, match=r"cannot be started .* ./train.sh setup --engine verl"):
        export(runs / "tied" / STEP, tmp_path / "out", ThisPython(tmp_path / "none"))
    assert [path.name for path in tmp_path.iterdir()] == ["python"]


# What needs no rank and no model.


def _files(actor: Path, ranks: list[int], size: int) -> Path:
    actor.mkdir(parents=True)
    for rank in ranks:
        torch.save({"w": torch.tensor([1.0])}, actor / f"model_world_size_{size}_rank_{rank}.pt")
    return actor


def test_missing_ranks_are_named(tmp_path):
    actor = _files(tmp_path / "actor", [0, 2, 7], 8)
    with pytest.raises(MergeError, match=r"_rank_1\.pt, .*_rank_3\.pt, .*_rank_4\.pt and 2 more; copy them there"):
        open_shards(actor)


def test_a_tensor_that_is_not_cut_must_be_the_same_on_every_rank(tmp_path):
    actor = _files(tmp_path / "actor", [0, 1], 2)
    assert open_shards(actor)["w"].load().tolist() == [1.0]
    torch.save({"w": torch.tensor([2.0])}, actor / "model_world_size_2_rank_1.pt")
    with pytest.raises(MergeError, match="rank 0 and rank 1 differ"):
        open_shards(actor)["w"].load()


def test_parts_are_joined_along_each_dimension_of_the_mesh():
    whole = torch.arange(20).reshape(5, 4)
    top, bottom = whole[:3], whole[3:]  # five rows between two ranks
    assert torch.equal(shards._joined([top, bottom], (2,), [("Shard", 0)]), whole)
    copies = [top, bottom, top + 100, bottom + 100]  # of two replicas the first is taken
    assert torch.equal(shards._joined(copies, (2, 2), [("Replicate", 0), ("Shard", 0)]), whole)
    corners = [top[:, :2], top[:, 2:], bottom[:, :2], bottom[:, 2:]]
    assert torch.equal(shards._joined(corners, (2, 2), [("Shard", 0), ("Shard", 1)]), whole)


def test_the_mesh_is_understood_as_each_torch_stores_it():
    def thing(**attributes):
        return type("Thing", (), attributes)()

    to_2_8 = thing(mesh=torch.arange(6).reshape(3, 2))
    to_2_12 = thing(_layout=thing(shape=(3, 2), stride=(2, 1)))
    later = thing(_layout=thing(axes=(thing(shape=(3,)), thing(shape=2))))
    assert [shards._mesh_sizes(mesh, 6, 2) for mesh in (to_2_8, to_2_12, later)] == [(3, 2)] * 3
    with pytest.raises(MergeError, match="does not fit 8 files"):
        shards._mesh_sizes(later, 8, 2)


class _Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return (os.system, (f"touch '{self.target}'",))


class _Group:
    def __reduce__(self) -> tuple:
        return (torch.distributed.init_process_group, ("gloo",))


def test_a_file_that_would_run_code_is_refused_and_nothing_runs(tmp_path):
    actor = _files(tmp_path / "actor", [0], 1)
    file = actor / "model_world_size_1_rank_0.pt"
    torch.save({"w": _Bomb(tmp_path / "exploded")}, file)
    with pytest.raises(MergeError, match=r"holds more than tensors \(.*system\); .* refused"):
        open_shards(actor)
    assert not (tmp_path / "exploded").exists()
    torch.save({"w": _Group()}, file)  # torch.distributed's names stand for hollow classes, whatever they are
    with pytest.raises(MergeError, match="w is a init_process_group, where verl writes tensors"):
        open_shards(actor)
    assert not torch.distributed.is_initialized()


def test_a_torn_file_is_said_to_be_torn(tmp_path):
    actor = _files(tmp_path / "actor", [0], 1)
    file = actor / "model_world_size_1_rank_0.pt"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(MergeError, match="was not written to its end, or it is damaged"):
        open_shards(actor)


def test_the_allowed_names_of_the_process_are_as_before_after_a_file_was_read(tmp_path):
    before = set(torch.serialization.get_safe_globals())
    open_shards(_files(tmp_path / "actor", [0], 1))
    assert set(torch.serialization.get_safe_globals()) == before


def test_what_is_no_checkpoint_of_fsdp_is_told_by_what_it_is(tmp_path):
    for step in (20, 3):
        _files(tmp_path / f"global_step_{step}" / "actor", [0], 1)
    with pytest.raises(EngineError, match=r"global_step_4: no such checkpoint; .* has global_step_3, global_step_20$"):
        actor_of(tmp_path / "global_step_4")
    (tmp_path / "global_step_5").mkdir()
    (tmp_path / "global_step_5" / "config.json").write_text("{}")
    with pytest.raises(EngineError, match="is a Hugging Face folder already"):
        actor_of(tmp_path / "global_step_5")
    (tmp_path / "global_step_6" / "actor" / "dist_ckpt").mkdir(parents=True)
    with pytest.raises(EngineError, match="written by Megatron"):
        actor_of(tmp_path / "global_step_6")
    (tmp_path / "global_step_7" / "actor").mkdir(parents=True)
    with pytest.raises(EngineError, match="its writing was cut short"):
        actor_of(tmp_path / "global_step_7")
    assert actor_of(tmp_path / "global_step_3" / "actor") == tmp_path / "global_step_3" / "actor"


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    step = tmp_path / "run" / STEP
    _files(step / "actor", [0], 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    for target, said in ((tmp_path / "mine", "is no export of ours"), (step, "holds the checkpoint itself")):
        with pytest.raises(EngineError, match=said):
            export(step, target, ThisPython())


def test_two_exports_do_not_write_the_same_folder_at_once(tmp_path):
    step = tmp_path / "run" / STEP
    _files(step / "actor", [0], 1)
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / f".out.tmp-{other.pid}").mkdir()
        with pytest.raises(EngineError, match=f"is being written by process {other.pid}; wait"):
            export(step, tmp_path / "out", ThisPython())
        other.kill()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: --from; see ./train.sh export --help"),
        (["--from", "3", "--dtype", "float16"], "argument --dtype: invalid choice"),
        (["--from", "global_step_4"], "global_step_4: no such checkpoint; "),
        (["--from", "nowhere/global_step_4"], "global_step_4: no such checkpoint; "),
    ],
)
def test_the_command_answers_in_one_line(in_folder, capsys, words, said):
    _files(in_folder / "outputs" / STEP / "actor", [0], 1)
    assert command_line.main(["export", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_the_models_that_verl_stores_itself_get_a_config_that_agrees_with_them(tmp_path):
    folder = tmp_path / "global_step_3" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16", "vocab_size": 7}))
    assert correct_saved_model(tmp_path / "global_step_3") is None  # no weights there
    save_file({"w": torch.zeros(8), "steps": torch.zeros(1, dtype=torch.int64)}, folder / "model.safetensors")
    note = correct_saved_model(tmp_path / "global_step_3")
    assert note == "global_step_3: config.json said bfloat16 and the weights are float32; corrected"
    assert json.loads((folder / "config.json").read_text()) == {"dtype": "float32", "vocab_size": 7}
    assert correct_saved_model(tmp_path / "global_step_3") is None


def test_what_verl_stores_of_an_adapter_is_not_left_where_it_would_open_as_random_weights(tmp_path):
    folder = tmp_path / "global_step_3" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"base_model.model.lm_head.weight": torch.zeros(8)}, folder / "model.safetensors")
    assert "renamed to .unmerged" in str(correct_saved_model(tmp_path / "global_step_3"))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors.unmerged"]

"""Scripts and Python text are read, and never run: variables, arrays, arithmetic, comments, what only running tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config import ConfigError
from grpo.convert import python_text, reading, shell
from grpo.convert.shell import OUTSIDE, UNKNOWN


def command(script: str) -> tuple[str, ...]:
    """The words of the script's last command."""
    return shell.read(script).commands[-1].words


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("N=8\nrun --n $N ${N}x '$N' \"$N $N\"", ("run", "--n", "8", "8x", "$N", "8 8")),
        ("N=${N:-8}\nM=${M-$N}\nrun $N $M", ("run", "8", "8")),
        ("run ${N:=3} $N", ("run", "3", "3")),
        ("A=1024\nB=$((A * 2 + 6 / 4))\nrun $B $(( ${A} - 24 ))", ("run", "2049", "1000")),
        ("run \\\n  --a 1 \\\n  --b 2", ("run", "--a", "1", "--b", "2")),
        ("ARGS=(\n  --a 1  # one\n  # --b 2\n  '--c' \"x y\"\n)\nrun ${ARGS[@]}", ("run", "--a", "1", "--c", "x", "y")),
        ('ARGS=(--c "x y")\nARGS+=(--d)\nrun "${ARGS[@]}"', ("run", "--c", "x y", "--d")),
        ("run 'NAME#500' a#b # a comment", ("run", "NAME#500", "a#b")),
        ("run --a 1 2>&1 > out.log", ("run", "--a", "1")),
        ("X='a b'\nY=$X\nrun $Y \"$Y\"", ("run", "a", "b", "a b")),
        ("run --a 1 \\\n  # --b 2 \\\n  --c 3", ("run", "--a", "1", "--c", "3")),
        ('run "$@" --a', ("run", "", "--a")),
        ("cat <<EOF > file\nit isn't a command\nEOF\nrun --a 1", ("run", "--a", "1")),
        ("run logger=['console','wandb'] \"x='1'\"", ("run", "logger=[console,wandb]", "x='1'")),
    ],
)
def test_a_script_gives_the_words_that_bash_would_give(script: str, words: tuple[str, ...]):
    assert command(script) == words


def test_the_output_of_a_command_and_a_variable_of_the_outside_are_not_guessed(tmp_path: Path):
    trap = tmp_path / "ran"
    words = command(f"D=$(touch {trap}; pwd)\nrun --a $D/x --b `touch {trap}` --c $HOME/data --d $((A + 1))")
    assert not trap.exists()
    assert words[2].split(UNKNOWN)[1] == f"$(touch {trap}; pwd)"
    assert words[2].endswith("/x")
    assert words[4].split(UNKNOWN)[1] == f"`touch {trap}`"
    assert words[6] == f"{OUTSIDE}HOME{OUTSIDE}/data"
    assert words[8].split(UNKNOWN)[1] == "$((A + 1))"


def test_what_stands_under_a_condition_is_not_taken_for_what_happens():
    script = shell.read(
        'N=8\ncase "$D" in\n  gpu)\n    ;;\n  npu)\n    N=16\n    ;;\nesac\n'
        'if [ "$D" = npu ] && true; then\n  N=32\n  A=(x)\nelse\n  other $N\nfi\nrun $N ${A[@]}'
    )
    assert script.commands[-1].words == ("run", "8")
    assert script.skipped == ["N=16", "N=32", "A=(x)"]
    assert [command.conditional for command in script.commands if command.words[0] == "other"] == [True]


def test_the_training_command_is_found_behind_a_launcher_and_its_gpus_with_it(tmp_path: Path):
    file = tmp_path / "run.sh"
    file.write_text(
        "export NNODES=2\naccelerate launch --config_file zero3.yaml --num_machines 2 --num_processes=14 \\\n"
        "  src/open_r1/grpo.py --num-generations=14 --bf16 --reward_funcs accuracy format\n"
    )
    run = reading.read(file)
    assert (run.tool, run.gpus, run.nodes) == ("trl", 7, 2)
    assert run.options == {"num_generations": "14", "bf16": True, "reward_funcs": ["accuracy", "format"]}


def test_options_of_a_yaml_file_that_a_script_names_lie_below_those_of_the_script(tmp_path: Path):
    (tmp_path / "base.yaml").write_text("num_generations: 8\nlearning_rate: 1.0e-6\n")
    (tmp_path / "run.sh").write_text("trl grpo --config base.yaml --num_generations 4")
    assert reading.read(tmp_path / "run.sh").options == {"num_generations": "4", "learning_rate": 1e-6}


def test_python_text_gives_literals_arithmetic_and_named_constants():
    found = python_text.read(
        "N = 2\nLENGTH = 1024 // N\nNAME = f'run-{N}'\ndata = load_dataset('org/set', split='train')\n"
        "config = trl.GRPOConfig(max_completion_length=LENGTH - 12, run_name=NAME, betas=[0.9, N], temperature=-1.5,\n"
        "    lr_scheduler_kwargs={'min_lr_rate': 0.1}, seed=pick(), **extra)\n"
        "GRPOTrainer(model='m', args=config, train_dataset=data, reward_funcs=[accuracy_reward, make(3), 'a/model'],\n"
        "    peft_config=LoraConfig(r=4, target_modules=['q_proj', 'v_proj']))\n"
    )
    assert found.options == {
        "max_completion_length": 500,
        "run_name": "run-2",
        "betas": [0.9, 2],
        "temperature": -1.5,
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "model_name_or_path": "m",
        "dataset_name": "org/set",
        "reward_funcs": ["accuracy_reward", "make", "a/model"],
        "lora_r": 4,
        "lora_target_modules": ["q_proj", "v_proj"],
        "use_peft": True,
    }
    assert found.unread == {"seed": "pick()", "**extra": "**extra"}


def test_python_text_is_never_run_whatever_it_says(tmp_path: Path):
    trap = tmp_path / "ran"
    found = python_text.read(f"open({str(trap)!r}, 'w')\nGRPOConfig(seed=open({str(trap)!r}, 'w'), top_k=9 ** 9 ** 9)")
    assert not trap.exists()
    assert set(found.unread) == {"seed", "top_k"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "", "is empty"),
        ("a.yaml", "{a: 1", "not YAML"),
        (
            "a.yaml",
            "num_generation: 8",
            "too few of its options are of trl, swift, openrlhf, paddle, verl, seq2seq (did you mean num_generations?)",
        ),
        ("a.yaml", "compute_environment: LOCAL\ndebug: false\nnum_machines: 1\nrdzv_backend: c10d\n", "too few"),
        ("a.py", "GRPOConfig(", "not Python"),
        ("a.py", "print(1)", "calls no GRPOConfig(...)"),
        ("a.sh", "echo 'no end", "not a shell script: a quote in it never ends"),
        ("a.sh", "swift sft --model m", "no command in it starts a training of"),
        ("a.sh", "python run_rl.py grpo_argument.yaml", "takes its settings from grpo_argument.yaml; name that"),
        ("a.sh", "trl grpo --config gone.yaml", "takes settings from gone.yaml, which is not here"),
        ("gone.yaml", None, "cannot be read (No such file or directory)"),
        ("a.yaml", b"\xff\xfe\x00", "is not UTF-8"),
        ("a.yaml", "seed: 1\nlearning_rate: 2\n", "could be of"),
    ],
)
def test_a_file_that_cannot_be_converted_is_answered_with_what_and_why(
    tmp_path: Path, name: str, text: str | bytes | None, said: str
):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        reading.read(tmp_path / name)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1

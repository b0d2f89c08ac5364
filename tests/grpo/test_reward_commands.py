"""`./train.sh reward new` and the refusals of `serve-reward`."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from grpo.commands import reward, serve_reward
from reward_funcs import RewardError, Sample, load_reward


def test_the_template_works_as_it_is_written(in_folder, capsys):
    assert reward.main(["new", "my_reward.py"]) == 0
    said = capsys.readouterr().out
    assert "--reward_func my_reward.py" in said
    done = subprocess.run([sys.executable, "my_reward.py"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("1.00")
    assert "my_reward.py:long_enough" in (in_folder / "my_reward.py").read_text(encoding="utf-8")
    loaded = load_reward("my_reward.py")
    assert loaded("m", "<answer>42</answer>", "42").parts == {"right": 1.0, "answered": 1.0}
    assert loaded("m", "<answer>42</answer>", "42").score == 1.0
    assert load_reward("my_reward.py:long_enough").attempts([Sample("m", "x" * 1025, "")])[0] is not None


def test_a_path_with_a_space_is_quoted_in_what_to_type_next(in_folder, capsys):
    assert reward.main(["new", "my reward.py"]) == 0
    assert capsys.readouterr().out.count(" 'my reward.py'\n") == 2


def test_an_existing_file_is_never_overwritten(in_folder):
    (in_folder / "mine.py").write_text("precious")
    with pytest.raises(RewardError, match=r"mine.py is there already"):
        reward.main(["new", "mine.py"])
    assert (in_folder / "mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "write: ./train.sh reward new my_reward.py"),
        (["old"], "write: ./train.sh reward new my_reward.py"),
        (["new", "reward.txt"], "name it reward.py"),
        (["new", "no/such/folder.py"], "cannot be written: No such file"),
    ],
)
def test_a_wrong_word_is_told_in_one_line(in_folder, words, said):
    with pytest.raises(RewardError) as error:
        reward.main(words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_other_machines_are_let_in_only_with_a_token(monkeypatch):
    monkeypatch.delenv("REWARD_SERVER_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.168.0.2", "example.org"):
        with pytest.raises(RewardError, match="set a token first, export REWARD_SERVER_TOKEN="):
            serve_reward.main(["--host", host])


def test_a_port_in_use_and_a_wrong_flag_are_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(RewardError, match=r"cannot be listened on .*--port names another"):
            serve_reward.main(["--port", str(taken.getsockname()[1])])
    with pytest.raises(RewardError, match="--prot"):
        serve_reward.main(["--prot", "1"])
    with pytest.raises(RewardError, match="did you mean accuracy"):
        serve_reward.main(["--reward", "acuracy"])
    with pytest.raises(RewardError, match="'x' is no number"):
        serve_reward.main(["--reward", "accuracy", "--reward_weights", "x"])

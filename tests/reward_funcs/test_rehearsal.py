"""The reward tried on known answers before training: S2-35, reward all 0 or 1."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reward_funcs import Reward, RewardError, Sample, build_reward, load_reward
from reward_funcs.combined import Combined
from reward_funcs.rehearsal import FULL, Plan, Row, short_check, try_out
from reward_funcs.rehearsal.answers import BAD, Right, right_answer, wrong_answer
from reward_funcs.rehearsal.cases import percentile
from reward_funcs.rehearsal.page import lines
from reward_funcs.sandbox import SandboxError, usable_jail

GOLD = [Sample("math_reasoning", "", str(n), {"index": 10 + n}) for n in range(4)]


@pytest.fixture
def programs(missing) -> None:
    """What runs a program needs a jail on this machine."""
    try:
        usable_jail()
    except SandboxError as error:
        missing(str(error))


def rows(*samples: Sample) -> list[Row]:
    return [Row(sample, f"record {n}") for n, sample in enumerate(samples, 1)]


def tried(reward, *samples: Sample, plan: Plan = FULL, **given):
    ((found, findings),) = try_out(reward, rows(*samples), plan, **given)
    return found, findings


def test_a_reward_that_knows_its_answers_passes_without_a_word():
    assert short_check(load_reward(None), GOLD) == []


def test_everything_is_measured_on_the_shipped_reward():
    found, findings = tried(load_reward(None), *GOLD)
    assert findings == []
    assert (found.rows, found.gold, found.right, found.gold_mean) == (4, 4, 4, 1.0)
    assert found.scorer == "reward_funcs/math_match.py: math_score"
    assert set(found.spellings.values()) == {1.0}  # 0, \boxed{0}, "The answer is 0.", #### 0, <answer>0</answer>, 0.0
    assert len(found.spellings) == 6
    assert {name: kind.mean for name, kind in found.bad.items()} == {bad.name: 0.0 for bad in BAD}
    assert (found.low_score, found.high_score, found.errors, found.differ) == (0.0, 1.0, 0, 0)
    # 2 to warm up, 4 bare twice, 4 in each of 5 other spellings, 4 of each of 6 kinds, the wrong ones twice, 3 huge
    assert found.calls == 2 + 8 + 20 + 24 + 4 + 3
    assert found.p50 is not None
    assert found.p99 is not None
    assert found.p50 <= found.p99 < 1


@pytest.mark.parametrize(
    ("source", "truth", "solution"),
    [
        ("gsm8k", "6 * 7 = <<6*7=42>>42 eggs.\n#### 42", None),
        ("math", "\\frac{1}{2}", None),
        ("qa", "Paris", None),
        ("trivia", '["New York", "NYC"]', None),
        ("classification", "positive", None),
        ("math_reasoning", "三分之二", None),
    ],
)
def test_the_gold_of_each_source_scores_one_and_no_bad_answer_is_paid(source, truth, solution):
    # RELIABILITY section 6, goal 8
    found, findings = tried(load_reward(None), Sample(source, "", truth), Sample(source, "", truth))
    assert findings == []
    assert found.right == 2


def test_a_gold_that_scores_zero_everywhere_stops_training_unless_forced():
    # S2-35: the truths' format and the reward do not fit
    odd = [Sample("math", "", f"see page {n}b", {"index": n}) for n in (7, 8)]
    with pytest.raises(RewardError, match="math: 2 of 2 right answers score less than 1") as error:
        short_check(load_reward(None), odd)
    assert "training would see no reward at all" in str(error.value)
    assert "record 7: 'see page 7b' scores 0; response read as '', truth as 'see page 7b'" in str(error.value)
    assert "--force" in str(error.value)
    assert "\n" not in str(error.value)
    (said,) = short_check(load_reward(None), odd, force=True)
    assert said.startswith("math: 2 of 2 right answers")


def test_the_same_reward_by_its_name_is_stopped_too_and_one_of_style_is_not():
    odd = [Sample("math", "", f"see page {n}b") for n in (7, 8)]
    with pytest.raises(RewardError, match="no reward at all"):
        short_check(build_reward(names="accuracy,format"), odd)
    (said,) = short_check(build_reward(names="format,repetition"), odd)
    assert "the prompts do not ask for that. To do: ask for it: --system 'Think between <think>" in said  # style: said
    asked = [replace(sample, prompt="Write <think>...</think><answer>...</answer>.") for sample in odd]
    assert short_check(build_reward(names="format,repetition"), asked) == []


def test_some_gold_that_scores_zero_is_a_warning_with_the_rows():
    found, (finding,) = tried(load_reward(None), *GOLD, Sample("math_reasoning", "", "see page 7b"))
    assert finding.level == "warn"
    assert finding.text.startswith("math_reasoning: 1 of 5 right answers score less than 1 by reward_funcs/math_match")
    assert finding.rows == ("record 5: 'see page 7b' scores 0; response read as '', truth as 'see page 7b'",)
    assert "--clean" in finding.fix
    assert found.low_rows == ["record 5"]


def test_the_column_that_holds_the_answer_is_found_by_trying():
    samples = [Sample("math", "", f"see page {n}b", {"index": n, "key": f"{n}", "topic": "sums"}) for n in range(5, 9)]
    _, findings = tried(load_reward(None), *samples)
    assert findings[0].fix == "the column `key` scores: --answer_key key"


def test_the_rules_that_fit_are_found_by_trying():
    samples = [Sample("math", "", truth) for truth in ("see page 7b", "see page 8", "as in 2c")]
    _, findings = tried(load_reward(None), *samples)
    assert findings[0].fix == "the rules of `qa` score them: --reward accuracy:data_source=qa"
    assert tried(build_reward(names="accuracy:data_source=qa"), *samples)[1] == []


def test_a_reward_of_the_users_is_warned_about_and_never_stopped():
    said = short_check(Reward(lambda solution_str: 0.0), GOLD)
    assert "4 of 4 right answers score less than 1 by <lambda> (mean 0)" in said[0]
    assert "gives every response 0, right or wrong" in said[1]
    lines = short_check(Reward(lambda solution_str: 0.5 * (solution_str != "")), GOLD)
    assert any("4 of 4 right answers score less than 1 by <lambda> (mean 0.5)" in line for line in lines)


def test_a_reward_that_wants_a_box_is_told_from_one_that_pays_nothing():
    function = Reward(lambda solution_str, ground_truth: float(f"\\boxed{{{ground_truth}}}" in solution_str))
    found, (finding,) = tried(function, *GOLD)
    assert (found.best, found.right) == ("boxed", 4)
    assert "gives a bare right answer 0, and 1 to \\boxed{0}; the prompts do not ask for that" in finding.text
    assert finding.fix == "ask for it: --system 'Put the final answer in \\boxed{}.'"
    asked = [Sample("m", "", "1", prompt=[{"role": "user", "content": "1? Use \\boxed{}."}])]
    assert tried(function, *asked)[1] == []


@pytest.mark.parametrize(
    ("source", "advice"), [("math", "--reward accuracy reads all of these"), ("qa", "let the reward read them")]
)
def test_a_reward_that_knows_one_spelling_is_told_so_and_sent_to_ours_only_where_it_reads_more(source, advice):
    function = Reward(lambda solution_str, ground_truth: float(solution_str.split()[-1:] == [ground_truth]))
    _, findings = tried(function, *(Sample(source, "", str(number)) for number in (42, 43, 44)))
    (found,) = [finding for finding in findings if "but not the same as" in finding.text]
    assert found.fix == f"where such answers are right, too: {advice}"


def paid(function, *samples: Sample) -> set[str]:
    found, findings = tried(Reward(function), *(samples or GOLD))
    names = {name for name, kind in found.bad.items() if kind.paid}
    assert len([finding for finding in findings if " pays " in finding.text and finding.level == "warn"]) == len(names)
    return names


def test_what_is_paid_by_mistake_is_named_by_its_kind():
    # RELIABILITY section 1.5 and PEERS section 5, row 2
    assert paid(lambda solution_str, ground_truth: float(ground_truth in solution_str)) == {"two answers"}
    assert paid(lambda solution_str: float(solution_str != "")) == {bad.name for bad in BAD} - {"empty"}
    assert paid(lambda solution_str, ground_truth: float(solution_str in (ground_truth, ""))) == {"empty"}
    assert paid(lambda solution_str: float(len(solution_str) < 99_999)) == {bad.name for bad in BAD} - {"huge"}
    assert paid(lambda solution_str: float(solution_str.strip().isdigit())) == {"wrong"}
    assert paid(lambda solution_str: float(solution_str.isascii() and solution_str != "")) == (
        {bad.name for bad in BAD} - {"empty", "other language"}
    )


def test_the_other_language_is_not_the_prompts():
    foreign = next(bad for bad in BAD if bad.name == "other language")
    assert foreign.make(Right("1", "1"), "2", "bare", "1 + 1 = ?").isascii() is False
    assert foreign.make(Right("1", "1"), "2", "bare", "请计算").isascii() is True


def test_a_reward_that_is_the_same_for_everything_cannot_teach():
    findings = tried(Reward(lambda solution_str: 0.2), *GOLD)[1]
    assert any("gives every response 0.2, right or wrong" in finding.text for finding in findings)


def test_a_constant_reward_is_refused_by_a_check_and_warned_about_before_training():
    text = "math_reasoning: <lambda> gives every response {}, right or wrong: a group has no difference to learn from"
    for score in (5.0, 0.0):
        constant = Reward(lambda solution_str, score=score: score)
        findings = tried(constant, *GOLD)[1]
        assert [f.text for f in findings if f.level == "refuse"] == [text.format(f"{score:g}")]
        assert any(line.startswith(text.format(f"{score:g}")) for line in short_check(constant, GOLD))
    beside = Combined(
        [("a", load_reward(None)), ("b", Reward(lambda solution_str: 5.0))]
    )  # the other one still teaches
    assert "refuse" not in [finding.level for _, each in try_out(beside, rows(*GOLD), FULL) for finding in each]


@pytest.mark.slow
def test_nothing_is_concluded_from_what_there_was_no_time_to_try():
    def slow(solution_str: str, ground_truth: str) -> float:
        time.sleep(0.2)
        return float(solution_str == ground_truth)

    plan = Plan(gold=200, tried=16, seconds=0.5, deadline=5)  # two calls, and one that begins before the end
    found, findings = tried(Reward(slow), *GOLD, plan=plan)
    assert (found.known, found.low_score, found.untried) == (4, 1.0, [bad.name for bad in BAD])
    assert not any("right or wrong" in finding.text for finding in findings)
    (left,) = [finding.text for finding in findings if finding.level == "note"]
    assert "bad answers were not all tried on slow, the time for this check was over: empty, wrong" in left
    assert any("bad answers    none was tried: the time for this check was over" in line for line in lines(found))


@pytest.mark.slow
def test_records_have_right_answers_also_where_every_call_hangs(tmp_path: Path):
    file = tmp_path / "loop.py"
    file.write_text("def compute_score(solution_str):\n    while True:\n        pass\n")
    found, _ = tried(load_reward(str(file)), *GOLD, plan=Plan(gold=200, tried=16, seconds=4, deadline=0.3))
    shown = lines(found)
    assert shown[1].endswith("right answers  none has a score: its calls do not end")
    assert shown[2].endswith("bad answers    none was tried: its calls do not end")


def test_a_reward_of_lists_is_called_with_several_responses_too():
    def first(completions, ground_truth):
        return [float(text == truth) for text, truth in zip(completions, ground_truth, strict=True)][:1]

    for samples, count in ((GOLD, 4), (GOLD[:1], 2)):
        findings = tried(Reward(first), *samples)[1]
        assert findings[0].level == "refuse"
        assert (
            f"first fails when it is called with {count} responses at once, as in training: returned 1 scores for"
            in (findings[0].text)
        )
        assert findings[0].fix == "return a list with one score for each of `completions`"
    with pytest.raises(RewardError, match="fails when it is called with 4 responses at once"):
        short_check(Reward(first), GOLD)


def by_a_column(completions, label):
    return [0.0 for _ in completions]


def by_an_extra(solution_str, extra_info):
    return float(extra_info["label"] == solution_str)


def test_what_to_do_about_a_missing_column_names_the_columns_that_are_there():
    samples = [Sample("m", "", "1", {"index": 0, "split": "train", "labels": "1"})]
    has = {
        by_a_column: "completions, data_source, ground_truth, index, labels, prompts, solution",
        by_an_extra: "data_source, ground_truth, index, labels",
    }
    for function, names in has.items():
        findings = tried(Reward(function), *samples)[1]
        assert (
            findings[0].fix
            == f"the records have no column `label`, they have {names}: name one of these, or add it to "
            "the data"
        )


def test_a_wrong_program_is_to_be_mended_not_to_be_written_as_a_number(programs: None):
    truth = '{"kind": "call", "entry": "f", "cases": [{"args": [2], "expected": 4}]}'
    wrong = Sample("code", "", truth, {"solution": "def f(x):\n    return 5\n"})
    findings = tried(load_reward(None), wrong)[1]
    assert findings[0].level == "refuse"
    assert findings[0].fix == "mend the program in `solution`, or the tests in ground_truth that it does not pass"


def test_a_reward_that_throws_dice_is_named():
    # the second call of each right and each wrong answer: 4 and 4
    rolls = itertools.count()
    found, findings = tried(Reward(lambda solution_str: float(next(rolls))), *GOLD)
    assert (found.differ, found.twice) == (8, 8)
    (finding,) = (finding for finding in findings if "differently" in finding.text)
    assert "8 times of 8" in finding.text
    assert finding.rows[0].startswith("record 1: '0' scores ")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda solution_str: None, "returned None"),
        (lambda solution_str: float("nan"), "returned nan"),
        (lambda solution_str: "1", "returned '1' .str"),
        (lambda solution_str: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda solution_str: 1.0 / len(solution_str), "ZeroDivisionError"),  # only on an empty response
        (lambda solution_str: {"points": 1.0}, "without 'score'"),
    ],
)
def test_a_reward_that_fails_more_than_training_allows_is_refused(function, said):
    with pytest.raises(RewardError, match=said) as error:
        short_check(Reward(function), GOLD)
    assert "--max_reward_errors" in str(error.value)
    assert "\n" not in str(error.value)
    assert short_check(Reward(function), GOLD, force=True)


def test_a_reward_that_fails_now_and_then_is_a_warning():
    samples = [Sample("m", "", str(n)) for n in range(100, 120)]
    reward = Reward(
        lambda solution_str, ground_truth: float(solution_str == ground_truth) if solution_str != "107" else 1 / 0
    )
    said = short_check(reward, samples, plan=Plan(gold=20, tried=20, seconds=30, deadline=5))
    assert any("ZeroDivisionError" in line for line in said)


@pytest.mark.slow
def test_a_reward_that_hangs_is_given_up(tmp_path: Path):
    # RELIABILITY section 6, goal 18: two calls to the deadline, not 200
    file = tmp_path / "slow.py"
    file.write_text("import time\ndef compute_score(solution_str):\n    time.sleep(60)\n    return 1.0\n")
    began = time.monotonic()
    with pytest.raises(RewardError, match=r"took longer than 0\.3 s") as error:
        short_check(load_reward(str(file)), GOLD, plan=Plan(gold=200, tried=16, seconds=4, deadline=0.3))
    assert time.monotonic() - began < 4
    assert "--reward_timeout" in str(error.value)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_given_up():
    began = time.monotonic()
    found, findings = tried(build_reward(names="server:http://127.0.0.1:9:retries=0"), *GOLD)
    assert time.monotonic() - began < 8
    assert found.errors == found.calls
    assert [finding.level for finding in findings] == ["refuse"]


def test_a_judge_is_neither_loaded_nor_asked():
    found, findings = tried(build_reward(names="llm_judge:url=http://127.0.0.1:9/v1:model=m"), *GOLD)
    assert (found.calls, [finding.level for finding in findings]) == (0, ["note"])


def test_an_unknown_source_is_found_before_training():
    with pytest.raises(RewardError, match="no reward for data_source 'poetry'; known: math_reasoning"):
        short_check(load_reward(None), [Sample("poetry", "", "a")])


def test_records_without_answers_are_called_and_not_judged():
    brevity = Reward(lambda solution_str: max(0.0, 1 - len(solution_str) / 100))
    samples = [Sample("style", "", "", {"index": 0})]
    assert short_check(brevity, samples, has_gold=False) == []
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        short_check(Reward(lambda solution_str: 1 / 0), samples, has_gold=False)


def test_code_is_tried_with_the_solution_beside_it():
    truth = '{"kind": "call", "entry": "f", "cases": [{"args": [2], "expected": 4}]}'
    good = Sample("code", "", truth, {"solution": "def f(x):\n    return x * 2\n"})
    body = Sample("code", "", truth, {"canonical_solution": "    return x * 2\n"}, prompt="def f(x):\n")
    assert right_answer(body, "code") == Right("def f(x):\n    return x * 2\n", None)
    assert right_answer(Sample("code", "", truth), "code") is None
    assert right_answer(good, "code") == Right("def f(x):\n    return x * 2\n", None)


BROKEN = {
    '{"kind": "call", "entry": "f"}': "of kind call needs 'cases', a list that is not empty",
    '{"kind": "cal", "entry": "f", "cases": [1]}': "has kind 'cal'; known: call, stdio, assert",
    "{no json": "is no JSON",
    '{"kind": "call", "entry": "f", "cases": [{"args": 2, "expected": 4}]}': "case 0: 'args' has to be a list",
}


def test_code_records_without_readable_tests_are_listed_whether_or_not_a_program_stands_beside_them(programs: None):
    truth = '{"kind": "call", "entry": "f", "cases": [{"args": [2], "expected": 4}]}'
    fine = [Sample("code", "", truth) for _ in range(6)]
    broken = [Sample("code", "", text, {"solution": "def f(x):\n    return 4\n"}) for text in BROKEN]
    found, findings = tried(load_reward(None), *fine, *broken)
    assert (found.rows, found.unknown, found.errors) == (10, 6, 0)
    assert found.broken_rows == ["record 7", "record 8", "record 9", "record 10"]
    first = findings[0]
    assert first.level == "refuse"
    assert first.text == "code: 4 of 10 records have a ground_truth without readable tests; every call on them fails"
    for row, name, why in zip(first.rows, found.broken_rows, BROKEN.values(), strict=True):
        assert row.startswith(f"{name}: ground_truth ")
        assert why in row
    with pytest.raises(RewardError, match="4 of 10 records have a ground_truth without readable tests"):
        short_check(load_reward(None), [row.sample for row in rows(*fine, *broken)])


def test_code_records_that_all_have_no_tests_are_refused_and_a_few_of_many_only_warned_about(programs: None):
    truth = '{"kind": "call", "entry": "f", "cases": [{"args": [2], "expected": 4}]}'
    _, findings = tried(load_reward(None), Sample("code", "", ""), Sample("code", "", "x = 1"))
    assert [finding.level for finding in findings] == ["refuse"]
    many = [Sample("code", "", truth) for _ in range(10)]  # 1 of 11 is less than the tenth that may fail
    (said,) = short_check(load_reward(None), [*many, Sample("code", "", "x = 1")])
    assert said.startswith("code: 1 of 11 records have a ground_truth without readable tests")


def test_a_wrong_answer_is_the_next_number_or_another_records():
    paris, london = Right("Paris", "Paris", ("Paris", "paris, France")), Right("London", "London", ("London",))
    assert wrong_answer(Right("#### 18", "18"), []) == "19"
    assert wrong_answer(paris, [Right("PARIS", "PARIS"), london]) == "London"
    assert wrong_answer(Right("0.5", "0.5"), [Right(".50", ".50"), Right("0.7", "0.7")]) == "0.7"
    assert wrong_answer(paris, []) == "none of these"


def test_percentiles_are_values_that_were_measured():
    ordered = [float(n) for n in range(1, 201)]
    assert (percentile(ordered, 0.5), percentile(ordered, 0.99)) == (100.0, 198.0)
    assert percentile([3.0], 0.99) == 3.0


def test_a_thousand_records_take_less_than_five_seconds():
    samples = [Sample("gsm8k", "", f"so it is {n}.\n#### {n}", {"index": n}) for n in range(1000)]
    began = time.process_time()
    assert short_check(load_reward(None), samples) == []
    assert time.process_time() - began < 5

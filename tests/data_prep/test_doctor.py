"""The prompts as a set: duplicates, leaks, languages, lengths. PEERS section 5, row 11."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from data_prep.doctor import clean, diagnose, language
from data_prep.errors import DataError
from data_prep.near import near_pairs, words
from data_prep.prompt_tokens import PromptTokens
from data_prep.record import Record

LONG = "Weng earns 12 dollars an hour for babysitting and yesterday she just did 50 minutes of it how much did she earn"


def records(*prompts: str, truth: str = "1") -> list[Record]:
    return [Record([{"role": "user", "content": text}], "math", truth, {}, n) for n, text in enumerate(prompts, 1)]


def levels(found) -> list[tuple[str, str]]:
    return [(finding.level, finding.text.split(" (")[0]) for finding in found.findings]


def test_case_punctuation_width_and_spaces_make_no_other_prompt():
    assert words("What is 1,234 + ２?") == ["what", "is", "1,234", "+", "2"]
    assert words("请计算：15 + 27 = ?") == ["请", "计", "算", "15", "+", "27", "="]
    assert near_pairs([words("What is 2 + 2?"), words("what is  2+2"), words("What is 2 - 2?")]) == {1: 0}


def test_one_word_of_many_is_near_and_one_number_is_another_problem():
    # 21 words, 19 triples; the last word takes part in one: 18 of 20 triples in common
    changed = LONG[: -len("earn")] + "get"
    assert near_pairs([words(LONG), words(changed)]) == {1: 0}
    assert near_pairs([words(f"{LONG} in 50"), words(f"{LONG} in 40")]) == {}  # 20 of 22, but for the numbers
    assert near_pairs([words("What is the capital of France?"), words("What is the capital of Spain?")]) == {}
    assert near_pairs([words(LONG), words(changed)], similar=0.95) == {}


def test_the_similarity_is_jaccards():
    # abcde: triples abc bcd cde; abcdx: abc bcd cdx; 2 of 4
    a, b = list("abcde"), list("abcdx")
    assert near_pairs([a, b], similar=0.5) == {1: 0}
    assert near_pairs([a, b], similar=0.51) == {}


def test_every_similar_pair_is_found():
    """Against comparing each with each, on texts of which many are alike"""
    rng = random.Random(3)
    texts = []
    for _ in range(60):
        base = [rng.choice("abcdefghijklmnop") for _ in range(30)]
        texts += [base, [*base[:-1], "z"], [rng.choice("xyz"), *base[1:]], base[:20]]
    sets = [set(zip(t, t[1:], t[2:], strict=False)) for t in texts]
    pairs = {
        later: next(e for e in range(later) if 5 * len(sets[e] & sets[later]) >= 4 * len(sets[e] | sets[later]))
        for later in range(len(texts))
        if any(5 * len(sets[e] & sets[later]) >= 4 * len(sets[e] | sets[later]) for e in range(later))
    }
    assert len(pairs) > 60
    assert near_pairs(texts) == pairs


def test_a_sentence_that_all_prompts_share_makes_none_of_them_alike():
    instruction = "Think step by step and write the final answer alone on the last line of your response please "
    towns = [f"{instruction} where is {chr(97 + n % 26)}{chr(97 + n // 26)}ville" for n in range(120)]
    assert near_pairs([words(text) for text in towns]) == {}
    assert near_pairs([words(text) for text in [*towns, LONG, LONG + " now"]]) == {121: 120}


@pytest.mark.slow
def test_ten_thousand_prompts_take_less_than_five_seconds():
    rng = random.Random(5)
    lexicon = [f"word{n}"[:4] + chr(97 + n % 26) + chr(97 + n // 26 % 26) for n in range(2000)]
    texts = [" ".join(rng.choices(lexicon, k=45)) for _ in range(9_000)]
    texts += [text + " again" for text in texts[:1000]]
    began = time.process_time()
    found = near_pairs([words(text) for text in texts])
    assert time.process_time() - began < 5
    assert found == {9_000 + n: n for n in range(1000)}


def test_texts_that_are_all_alike_do_not_take_forever():
    texts = [words(f"{LONG} {'x' * (n + 1)}") for n in range(1500)]
    began = time.process_time()
    near_pairs(texts)
    assert time.process_time() - began < 5


def test_duplicates_are_told_from_contradictions_and_from_near_ones():
    data = [*records("a b c", "A b  c!", "a b c", LONG), *records(LONG + " now", "a b c", truth="2")]
    found = diagnose(data, [])
    assert found.duplicates == [(2, 0)]
    assert found.conflicts == [(5, 0)]
    assert found.near == [(1, 0), (4, 3)]
    assert levels(found) == [
        (
            "warn",
            "1 record with the prompt of an earlier one and another answer: one of the two is paid for a wrong answer",
        ),
        ("warn", "1 record with the same prompt as an earlier one"),
        ("warn", "2 records with nearly the same prompt as an earlier one"),
    ]
    assert found.findings[0].rows == ('record 1 and record 0, "a b c": "2" and "1"',)
    assert [record.prompt[0]["content"] for record in clean(data, found)] == [LONG]


def test_evaluation_prompts_that_are_trained_on_are_a_warning():
    train, val = records("one", "two", "TWO?", "three"), records("two", "four")
    found = diagnose(train, val)
    assert (found.leaked, found.near_leaked) == ([(1, 0)], [(2, 0)])
    assert levels(found) == [("warn", "1 of the 2 to evaluate on is trained on, too")]
    assert "(2 training records, 1 of them only nearly the same)" in found.findings[0].text
    assert "--clean clean.parquet" in found.findings[0].fix
    assert [r.prompt[0]["content"] for r in clean(train, found)] == ["one", "three"]
    assert diagnose(records("one"), records("one"), apart=False).findings == []  # a single prompt is in both by need


def test_a_system_prompt_is_no_part_of_what_is_compared():
    system = {"role": "system", "content": LONG}
    data = [Record([system, {"role": "user", "content": text}], "math", "1", {}) for text in ("alpha", "beta")]
    assert diagnose(data, []).near == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("How many?", "Latin"),
        ("15 + 27 = ?", "none"),
        ("请计算：15 + 27", "Chinese"),
        ("请用 Python 写一个函数 quicksort", "Chinese"),
        ("What does 你好 mean in English, and how is it used in a sentence?", "Latin"),
        ("これは何ですか", "Japanese"),
        ("얼마입니까", "Korean"),
        ("Сколько?", "Cyrillic"),
        ("Combien coûte-t-il ?", "Latin"),
    ],
)
def test_the_language_is_that_of_most_letters(text, name):
    assert language(text) == name


def test_languages_are_a_note_from_one_percent_on():
    assert levels(diagnose(records("请计算", "How many"), [])) == [
        ("note", "prompts in several languages: Chinese 50%, Latin 50%")
    ]
    english = [f"how many {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(200)]
    assert diagnose(records(*english, "请计算"), []).findings == []


def test_truths_that_a_comparison_of_texts_misses_are_noted_for_own_rewards():
    forms = ["1,234", "42.0", r"\boxed{42}", "$x$", " 42", "４２", "42", "4,2", "1.5"]
    data = [record for n, form in enumerate(forms) for record in records(f"p{n}q", truth=form)]
    assert diagnose(data, []).findings == []
    (finding,) = diagnose(data, [], compares_text=True).findings
    assert finding.text.count("1 ") == 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "<s>": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def template(folder: Path, text: str) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": text, "bos_token": "<s>"}))


def test_prompts_are_counted_with_the_models_own_template(folder: Path):
    prompts = [record.prompt for record in records("a b c", "a")]
    assert PromptTokens(folder).counts(prompts) == [3, 1]
    template(
        folder, "{{ bos_token }} {% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}assistant :"
    )
    # <s> user : a b c assistant :
    assert PromptTokens(folder).counts(prompts) == [8, 6]
    assert PromptTokens(folder, template="plain").counts(prompts) == [3, 1]
    assert PromptTokens(folder, template="x {{ messages[0]['content'] }}").counts(prompts) == [4, 2]
    assert PromptTokens(folder, system="be brief").counts(prompts) == [12, 10]


def test_the_end_that_a_tokenizer_puts_behind_a_text_is_not_counted(folder: Path):
    # T5's and BART's: a response follows, and not the end
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["</s>"])
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert PromptTokens(folder).counts([records("a b c")[0].prompt]) == [3]


def test_a_template_that_refuses_a_prompt_or_is_broken_is_one_line(folder: Path):
    template(folder, "{{ raise_exception('no system here') }}")
    with pytest.raises(DataError, match="does not take a prompt of the messages user"):
        PromptTokens(folder).counts([records("a")[0].prompt])
    template(folder, "{% if %}")
    with pytest.raises(DataError, match="chat template cannot be read"):
        PromptTokens(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: cannot be read"):
        PromptTokens(folder)


def test_a_template_cannot_reach_python(folder: Path):
    template(folder, "{{ messages.__class__.__mro__ }}")
    with pytest.raises(DataError, match="unsafe"):
        PromptTokens(folder).counts([records("a")[0].prompt])


def test_over_long_prompts_name_the_length_that_keeps_them():
    found = diagnose(records("first", "second", "third"), records("fourth"), lengths=[10, 700, 513, 900], longest=512)
    assert found.over_long == [1, 2]
    (finding,) = found.findings
    assert finding.text.startswith("2 of 3 prompts have more than --max_prompt_length 512 tokens")
    assert finding.fix == "--max_prompt_length 960 keeps them all"  # 900, rounded up to a multiple of 64
    assert finding.rows == ("record 1: 700 tokens", "record 2: 513 tokens")
    assert diagnose(records("first"), [], lengths=[513], longest=512).findings[0].level == "refuse"

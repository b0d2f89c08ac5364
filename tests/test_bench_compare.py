"""The speeds that the READMEs show are those that bench/compare.py recorded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
RECORD = REPO / "bench/results/compare.json"


@pytest.mark.parametrize(("page", "lang"), [("README.md", "en"), ("README.zh.md", "zh")])
def test_the_pages_show_the_recorded_speeds(page: str, lang: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(REPO / "bench"))
    for name in ("compare_table", "machine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import compare_table

    assert compare_table.readme_table(RECORD, lang) in (REPO / page).read_text(encoding="utf-8")


def test_the_page_of_the_bench_is_that_of_its_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(REPO / "bench"))
    import compare_table

    copy = tmp_path / "compare.json"
    copy.write_bytes(RECORD.read_bytes())
    compare_table.write(copy)
    assert copy.with_suffix(".md").read_text(encoding="utf-8") == RECORD.with_suffix(".md").read_text(encoding="utf-8")

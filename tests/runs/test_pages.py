"""The committed result pages are what their templates make of the committed numbers."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TEMPLATES = sorted(path.stem for path in (ROOT / "runs" / "templates").glob("*.md") if path.stem != "macros")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "runs"))
    return importlib.import_module("page")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_page_is_its_template_with_its_numbers(name: str, page: Any) -> None:
    text = (RESULTS / f"{name}.md").read_text(encoding="utf8")
    made = page.render(name, page.read_numbers(name, RESULTS)) + "\n"
    assert made == text, f"make it again: python runs/pages.py {name}"
    assert not re.search(r"(problems|rows|masks filled) a (task|step)", made), "per task, per step"


def test_the_index_and_the_card_are_made_of_the_pages(page: Any, tmp_path: Path) -> None:
    for path in RESULTS.glob("*.md"):
        shutil.copy(path, tmp_path)
    importlib.import_module("results_page").write_index(tmp_path)
    assert (tmp_path / "README.md").read_text() == (RESULTS / "README.md").read_text()
    tiny: Any = importlib.import_module("tiny_proof")
    assert tiny.card_results(RESULTS) in tiny.CARD.read_text(encoding="utf8")


def test_every_picture_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf8") for path in RESULTS.glob("*.md"))
    pages += "".join(path.read_text(encoding="utf8") for path in (ROOT / "docs").glob("*.md"))
    pages += (ROOT / "README.md").read_text(encoding="utf8")
    pages += (ROOT / "src/foretell/checkpoints/tiny/README.md").read_text(encoding="utf8")
    pictures = [path.name for kind in ("png", "svg", "webp") for path in RESULTS.glob(f"*.{kind}")]
    assert not [name for name in pictures if name not in pages]


def test_pages_are_made_again_without_measuring(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = json.loads((RESULTS / "main_table.json").read_text())
    row = numbers["tasks"]["choice"]["rows"][1]
    numbers["tasks"] = {"choice": numbers["tasks"]["choice"]}
    row["accuracy"] = 0.125
    (tmp_path / "main_table.json").write_text(json.dumps(numbers))
    monkeypatch.setattr(sys, "argv", ["pages.py", "--out", str(tmp_path)])
    importlib.import_module("pages").main()
    text = (tmp_path / "main_table.md").read_text()
    assert "| choice | Prophet, mean gap | replayed | 1000 | 12.5 |" in text
    assert "| word |" not in text
    assert (tmp_path / "main_table.png").stat().st_size > 1000
    assert "main_table.md" in (tmp_path / "README.md").read_text()
    plt.close("all")


def test_prose_is_wrapped_and_nothing_else(page: Any) -> None:
    line = "word " * 40
    text = page.fill(f"# {line}\n{line}\n{line}\n\n- {line}\n| {line} |\n> {line}\n")
    assert max(map(len, text.splitlines())) == len(f"| {line} |")
    assert [one[:6] for one in text.splitlines()] == ["# word", *["word w"] * 4, "", "- word", "| word", "> word"]
    assert page.fill("on average\n0.5 points\n1. one\n2. two") == "on average 0.5 points\n1. one\n2. two"
    code = "```\none\n\ntwo\n```"
    assert page.fill(f"some\ntext\n\n{code}\nmore\ntext") == f"some text\n\n{code}\nmore text"

"""The table of runs/methods.py says how many answers a method changes."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from foretell.evaluation.report import compare
from tests.evaluation.test_report import FAST, FULL

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("methods")


def test_agreement_has_a_column(methods: Any) -> None:
    rows = [asdict(row) for row in compare([*FULL, *FAST], ("full", "fast"))]
    words = (methods.CHECKED, *(name.removesuffix(" + recheck") for name in methods.RECHECKED))
    rows += [rows[0] | {"recipe": name} for word in words for name in (word, f"{word} + recheck") if name != "full"]
    numbers = {"limit": 4, "seed": 1, "word": rows, "long canvas": []}
    page = importlib.import_module("page").render("methods", numbers)
    headings, _, *shown = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    place = headings.index("agrees, %")
    full, fast, *_ = (line for line in shown if line[0] == "word")
    assert (full[place], fast[place]) == ("", f"{100 * rows[1]['agreement']:.1f}") == ("", "50.0")
    assert "100.0% equal answers" in page

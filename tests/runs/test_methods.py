"""The table of runs/methods.py says how many answers a method changes."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.evaluation.report import compare
from tests.evaluation.test_report import FAST, FULL

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("methods")


def test_agreement_has_a_column(methods: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(compare([*FULL, *FAST], ("full", "fast")))
    monkeypatch.setattr(methods, "describe_combinations", lambda _: [])
    monkeypatch.setattr(methods, "describe_recheck", lambda _: [])
    page = methods.markdown({"word": rows}, [], {}, SimpleNamespace(limit=4))
    headings, _, *shown = [line.strip("| ").split(" | ") for line in page if line.startswith("|")]
    place = headings.index("agrees, %")
    full, fast = (line for line in shown if line[0] == "word")
    assert (full[place], fast[place]) == ("", f"{100 * rows[1].agreement:.1f}") == ("", "50.0")
    assert "100.0% equal answers" in " ".join(page)

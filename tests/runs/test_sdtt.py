"""The conclusions of runs/sdtt.py: the exact test decides, and a contradicting interval is explained."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from foretell.evaluation.report import compare
from tests.evaluation.test_report import FULL

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def sdtt(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("sdtt")


@pytest.fixture
def describe(sdtt: Any) -> Callable[..., str]:
    """Return what the page says about a student with so many pairs won and lost."""
    render = importlib.import_module("page").render

    def said(task: str, won: int, lost: int, low: float, high: float) -> str:
        (row,) = compare(FULL, ("full",))
        row = replace(row, won=won, lost=lost, difference=(won - lost) / 500, difference_low=low, difference_high=high)
        numbers = {
            "model": "tiny",
            "limit": 500,
            "paper": {},
            task: {"rows": [], "student_to_half_teacher": asdict(row)},
        }
        (line,) = (one for one in render("sdtt", numbers).splitlines() if one.startswith(f"- {task}"))
        return str(line)

    return said


def test_an_interval_that_leaves_out_0_does_not_overrule_the_test(describe: Callable[..., str]) -> None:
    assert describe("choice", 0, 4, -0.016, -0.002) == (
        "- choice: -0.8 points (-1.6 to -0.2), 0 won and 4 lost, exact p 0.12: no difference is shown "
        "(the interval leaves out 0, but rests on 4 pairs; the test decides)."
    )
    assert "contains 0" in describe("word", 10, 1, -0.001, 0.03), "nor does one that contains it"


def test_where_both_agree_nothing_needs_to_be_said(describe: Callable[..., str]) -> None:
    assert describe("word", 8, 15, -0.032, 0.004).endswith("exact p 0.21: no difference is shown.")
    assert describe("word", 0, 20, -0.06, -0.02).endswith("exact p 0.00: distilling did harm.")
    assert describe("word", 20, 0, 0.02, 0.06).endswith("distilling helped.")
    assert describe("sudoku", 2, 0, 0.0, 0.01).endswith("no difference is shown."), "0 is contained"


def test_a_small_p_is_not_nothing(sdtt: Any) -> None:
    assert [sdtt.format_p(chance) for chance in (1e-9, 0.001, 0.125)] == ["< 0.001", "0.001", "0.125"]

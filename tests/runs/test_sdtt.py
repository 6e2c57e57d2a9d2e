"""The conclusions of runs/sdtt.py: the exact test decides, and a contradicting interval is explained."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def sdtt(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("sdtt")


def bought(won: int, lost: int, low: float, high: float) -> Any:
    return SimpleNamespace(won=won, lost=lost, difference=(won - lost) / 500, difference_low=low, difference_high=high)


def test_an_interval_that_leaves_out_0_does_not_overrule_the_test(sdtt: Any) -> None:
    said = sdtt.describe_gain("choice", bought(0, 4, -0.016, -0.002))
    assert said == (
        "- choice: -0.8 points (-1.6 to -0.2), 0 won and 4 lost, exact p 0.12: no difference is shown at this n "
        "(the interval leaves out 0, but rests on 4 pairs; the test decides)."
    )
    assert "holds 0" in sdtt.describe_gain("word", bought(10, 1, -0.001, 0.03)), "nor does one that holds it"


def test_where_both_agree_nothing_needs_to_be_said(sdtt: Any) -> None:
    assert sdtt.describe_gain("word", bought(8, 15, -0.032, 0.004)).endswith(
        "exact p 0.21: no difference is shown at this n."
    )
    assert sdtt.describe_gain("word", bought(0, 20, -0.06, -0.02)).endswith("exact p 0.00: distilling did harm.")
    assert sdtt.describe_gain("word", bought(20, 0, 0.02, 0.06)).endswith("distilling helped.")
    assert sdtt.describe_gain("sudoku", bought(2, 0, 0.0, 0.01)).endswith("no difference is shown at this n."), (
        "0 is held"
    )


def test_a_small_p_is_not_nothing(sdtt: Any) -> None:
    assert [sdtt.format_p(chance) for chance in (1e-9, 0.001, 0.125)] == ["< 0.001", "0.001", "0.125"]

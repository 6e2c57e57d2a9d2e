"""The conclusions of runs/judge.py from its numbers."""

from __future__ import annotations

import importlib
from dataclasses import asdict

import pytest

from foretell.certify.coverage import CoverageResult
from tests.runs.test_study import RUNS


def kept(speedup: float, above: float = 0.0, violations: float = 0.0) -> dict[float, CoverageResult]:
    return {eps: CoverageResult(speedup, 0.01, above, violations, 1.0) for eps in (0.01, 0.02, 0.05)}


def test_the_verdict_compares_at_one_percent_and_counts_draws_and_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUNS))
    script = importlib.import_module("judge")
    mine = {name: kept(1.5) for name in (*script.JUDGES, *script.RULES)}
    mine |= {"judge": kept(2.0, above=0.09, violations=0.02), "entropy": kept(1.6, violations=0.07)}
    across = {"word -> word": kept(2.0), "choice -> word": kept(1.1)}
    stored = {
        where: {name: {str(eps): asdict(one) for eps, one in found.items()} for name, found in rules.items()}
        for where, rules in {"word": mine, "across": across}.items()
    }
    numbers = {"rules": stored, "importance": {"word": {"gap": 0.1}}, "splits": 2, "draws": 3, "seed": 1, "taught": 4}
    page = " ".join(importlib.import_module("page").render("judge", numbers).split())
    assert "the judge has 2.00x, faster than the best other rule (entropy, 1.60x" in page
    assert "1.10x trained on choice" in page
    assert "Delta is kept in 24 of 27 cases" in page
    assert "at most 7.0% of the draws have a rule whose risk is above eps" in page
    assert "above eps in more than delta of the splits in 3 cases, at most in 9.0%" in page

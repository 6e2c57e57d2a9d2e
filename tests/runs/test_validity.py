"""The simulations of runs/validity.py with few runs have the risk that they say, and the page can report a failure."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs.test_study import RUNS, numbers


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    made = importlib.import_module("validity")
    for name, value in {"LOOKS_LOSSES": 600, "REQUESTS": 1000, "DRIFTS": (0.1,)}.items():
        monkeypatch.setattr(made, name, value)
    monkeypatch.setattr(made, "SCHEDULES", {"often": range(300, 601, 50)})
    return made


@pytest.mark.parametrize("kind", ["0/1", "graded"])
def test_losses_have_the_risk_that_is_planted(script: Any, kind: str) -> None:
    rng, risks = np.random.default_rng(1), np.array([0.02, 0.1])[:, None]
    nested, alone = (script.draw_losses(rng, kind, risks, (40, rungs, 2000)) for rungs in (1, 2))
    for losses in (nested, alone):
        assert losses.shape == (40, 2, 2000)
        assert losses.mean(axis=(0, 2)) == pytest.approx([0.02, 0.1], rel=0.1)
    assert (nested[:, 0] <= nested[:, 1]).all()
    assert not (alone[:, 0] <= alone[:, 1]).all()


def test_the_page(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["validity.py", "--runs", "100", "--out", str(tmp_path / "out")])
    script.main()
    page = (tmp_path / "out" / "validity.md").read_text(encoding="utf8")
    assert "cases with a promise the share is at most the promised one, and in 0 its interval lies above" in " ".join(
        page.split()
    )
    found = numbers(tmp_path, "validity")
    assert len(found["ladders"]) == 12
    assert all(case["wrong"]["runs"] == 100 for case in found["ladders"])
    assert [case["audits"] for case in found["false_alarms"]] == [20, 20, 1000]
    by_way = {(case["way"], case["risk"]): case["certified"]["count"] for case in found["looks"]}
    assert by_way["naive", 1.0] > by_way["spent", 1.0], "looking again without paying for it"
    assert "validity.md" in (tmp_path / "out" / "README.md").read_text(encoding="utf8")


def test_a_broken_promise_is_said(script: Any) -> None:
    case = script.LadderCase("0/1", "nested", 1.0, "betting", script.Share(1000, 100))
    numbers = {"runs": 1000, "delta": 0.05, "alarm_level": 0.01, "seed": 1, "ladders": [asdict(case)]}
    numbers |= {"looks": [], "false_alarms": [], "delays": []}
    page = " ".join(importlib.import_module("page").render("validity", numbers).split())
    assert "In 0 of 1 cases with a promise the share is at most the promised one, and in 1 its interval lies" in page
    assert "10.00% (8.21 to 12.03)" in page

"""What runs/decide.py computes from decisions."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend("runs")
    return importlib.import_module("decide_page")


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Decisions of a calibrated model: the right label is drawn from the probabilities."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        p = rng.dirichlet([4.0, 1.0, 1.0])
        rows.append({"forwards": 2, "items": [{"p": p.tolist(), "right": int(rng.choice(3, p=p)), "mass": 0.9}]})
    return rows


def test_a_calibrated_model(page: Any) -> None:
    tested, learned = make_rows(1500, 0), make_rows(600, 1)
    row = page.summarise("word", "default", ("full", {"steps": 1}), tested, tested, learned)
    assert (row.difference, row.changed, row.forwards, row.mass) == (0, 0, 2, 0.9)
    assert row.recipe == "full steps=1"
    assert row.temperature == pytest.approx(1, abs=0.2)
    assert row.error_after < 0.05
    assert row.mean_covered == pytest.approx(0.95, abs=0.015)
    assert row.covered == pytest.approx(0.95, abs=0.03)
    assert 1 < row.size < 3


def test_the_page_names_goals_that_are_not_met(page: Any) -> None:
    tested, full = make_rows(200, 0), make_rows(200, 0)
    for row in full:
        row["items"][0]["p"] = np.eye(3)[row["items"][0]["right"]].tolist()  # always right
    rows = [
        page.summarise("choice", "default", ("swift", {}), tested, full, make_rows(100, 1)),
        page.summarise("choice", "full", ("full", {}), full, full, []),
    ]
    heads = [{"positions": 1, "all": 100.0, "labels": 50.0}]
    text = "\n".join(page.describe(rows, {"choice": {"default": 1.0, "full": 10.0}}, heads, 100))
    assert "within 0.5 points of full decoding at 3 forwards or fewer: met; `full` +0.0 points" in text
    assert "Head at least 3x less: not met; 2x at least" in text
    assert "| default |" in text
    assert "10.0x" in text
    assert len(page.plot(rows).axes) == 1

"""runs/fleet.py at small sizes: what it measures, what it simulates, and what it writes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

RUNS = Path(__file__).parents[2] / "runs"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RUNS))
    yield importlib.import_module("fleet")
    plt.close("all")
    torch.set_num_threads(1)


def test_both_parts_make_a_page(fleet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"full": "full steps=3", "prophet": "full steps=3 stop=prophet(tau=linear(-1,-1))", "swift": "swift"}
    fitted = (("full", 2, 2), ("full", 4, 1))
    for name, value in {"TASK": "sudoku", "CHECKED": few, "FITTED": fitted, "BATCH": 2}.items():
        monkeypatch.setattr(fleet, name, value)
    monkeypatch.setattr(fleet, "REPLICAS", (1, 3))
    monkeypatch.setattr(fleet, "GPUS", ("a100", "h100"))
    monkeypatch.setattr(fleet, "prompt_lengths", lambda _: [50, 60, 90])
    for parts in (["check"], ["plan"]):
        monkeypatch.setattr(
            sys, "argv", ["fleet", "--parts", *parts, "--requests", "3", "--jobs", "60", "--out", str(tmp_path)]
        )
        fleet.main()
    found = json.loads((tmp_path / "fleet.json").read_text())
    assert set(found["check"]["ways"]) == {"full", "prophet", "swift", "swift, Poisson arrivals"}
    assert found["check"]["exits"] == {"full": [3] * 3, "prophet": [1] * 3, "swift": found["check"]["exits"]["swift"]}
    assert all(one["ratios"]["rate"] > 0 for one in found["check"]["ways"].values())
    rates = found["plan"]["capacity"]["published"]["h100"]
    assert rates["full"] < rates["prophet"] < rates["fast-dllm-prophet"]
    assert rates["full"] > found["plan"]["capacity"]["published"]["a100"]["full"]
    page = (tmp_path / "fleet.md").read_text()
    assert "**simulated**" in page
    assert "](fleet.png)" in page
    assert "{" not in page


def test_spread_keeps_the_published_mean(fleet: Any) -> None:
    shares = fleet.spread([0.1, 0.3, 0.6, 1.0], 0.625)
    assert np.mean(shares) == pytest.approx(0.625, abs=1e-6)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_published_workload_has_the_published_steps(fleet: Any) -> None:
    measured = [0.2, 0.5, 0.8, 1.0]
    load = fleet.Workload([50], measured, published=True)
    assert load.mean_steps("full") == 256
    assert load.mean_steps("prophet") == pytest.approx(160, abs=1)
    steps = len(load.works["fast-dllm-prophet"][0])  # each of the eight blocks takes a whole number
    assert 256 / 3.25 <= steps < 256 / 3.25 + 8
    assert load.mean_steps("fast-dllm-prophet") == pytest.approx(steps / 7.66 * 6.82, abs=1)
    jobs = load.jobs("fast-dllm-prophet", 20)
    assert {one.stored for one in jobs} == {True}
    assert {one.runs[-1][1].commit for one in jobs if one.steps < 70} == {256}
    own = fleet.Workload([50], measured, published=False)
    assert own.mean_steps("prophet") == pytest.approx(256 * np.mean(measured), abs=1)

"""Climbs over stored decodings: the curves and tables that runs/climb.py publishes."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tests.runs.test_study import RUNS

# Rung 1 loses nothing, rung 2 one request in 20, rung 3 every second one.
LOSSES = [[0.0, float(at % 20 == 0), float(at % 2)] for at in range(200)]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("climb")


def make_pool(script: Any) -> Any:
    return script.Pool("pool", "answer", False, ["a", "b", "c"], [], LOSSES, [[20, 10, 5, 2]] * 200)


def test_a_stream_is_served_by_what_it_has_earned(script: Any) -> None:
    setting = script.Setting(0.1, explore=0.5)
    costs, state, taken = script.simulate(make_pool(script), setting, 3000, 0)
    assert state.rung == 2
    assert taken[1] < taken[2] < 1500
    assert (costs[:, 0] == 20).all()
    assert set(costs[: taken[1], 1]) == {20}
    assert set(costs[taken[2] :, 1]) == {5}
    first = costs[0 : taken[1], 2]
    assert set(first) <= {0, 17, 15}  # only the faster rungs, because the answer is decoded in full
    last = costs[taken[2] :, 2]
    assert set(last) == {0, 20}  # only full decoding, when nothing is left to earn
    assert 0 < (last > 0).mean() < 0.05


def test_one_rung_at_a_time_needs_more_requests(script: Any) -> None:
    together = script.run_climbs(make_pool(script), script.Setting(0.1, explore=0.5), 2000, 3)
    alone = script.run_climbs(make_pool(script), script.Setting(0.1, explore=0.5, ahead=1), 2000, 3)
    assert together.best == 2
    assert together.wrong == 0
    assert together.earned[2] is None
    assert together.earned[1] is not None
    assert alone.earned[1] is not None
    assert together.earned[1] < alone.earned[1]
    assert together.total[-1] < together.served[-1] == pytest.approx(max(together.served))


def test_replayed_rungs_cost_nothing(script: Any) -> None:
    pool = script.Pool("pool", "answer", False, ["a"], [1], [[0.0]] * 10, [[20, 10]] * 10)
    costs, state, taken = script.simulate(pool, script.Setting(0.1, explore=0.0), 100, 0)
    assert state.rung == 1
    assert costs[: taken[1], 2].sum() == 0


def test_the_page(script: Any) -> None:
    results = [script.run_climbs(make_pool(script), script.Setting(0.1, explore=script.EXPLORE), 600, 2)]
    lines = script.describe([make_pool(script)], results)
    assert "## pool" in lines
    assert any("`b` | 5.00% | 4.00x" in line for line in lines)
    assert np.isfinite(results[0].served).all()
    assert script.plot(results).axes

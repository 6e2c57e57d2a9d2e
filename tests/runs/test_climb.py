"""Climbs over stored decodings: the curves and tables that runs/climb.py publishes."""

from __future__ import annotations

import importlib
from dataclasses import asdict, replace
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
    made = script.simulate(make_pool(script), setting, 3000, 0)
    costs, taken = made.costs, made.earned
    assert (made.last, made.used, made.alarms) == (2, {0, 1, 2}, 0)
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
    assert together.used == 2
    assert together.used_bad == together.earned_bad == 0
    assert 2 < together.late[1] < together.late[0] <= 4
    assert together.earned[2] is None
    assert together.earned[1] is not None
    assert alone.earned[1] is not None
    assert together.earned[1] < alone.earned[1]
    assert together.total[-1] < together.served[-1] == pytest.approx(max(together.served))


def test_replayed_rungs_cost_nothing(script: Any) -> None:
    pool = script.Pool("pool", "answer", False, ["a"], [1], [[0.0]] * 10, [[20, 10]] * 10)
    made = script.simulate(pool, script.Setting(0.1, explore=0.0), 100, 0)
    assert made.last == 1
    assert made.costs[: made.earned[1], 2].sum() == 0


def test_a_bad_rung_that_is_used_is_counted(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that has no loss until the rungs are earned, which is what delta is for."""
    pool = script.Pool("pool", "answer", False, ["a", "b"], [], [[0.0, 0.0], [0.0, 1.0]], [[20, 10, 5]] * 2)

    class Lucky:
        def integers(self, _: int, size: int) -> Any:
            return np.repeat([0, 1], size // 2)

        def random(self) -> float:
            return 0.0

    setting = script.Setting(0.1, explore=1.0)
    assert script.run_climbs(pool, setting, 200, 2).used_bad == 0
    monkeypatch.setattr(script.np.random, "default_rng", lambda seed: Lucky())
    found = script.run_climbs(pool, setting, 200, 2)
    assert found.used_bad == found.earned_bad == 1
    assert (found.used, found.alarms) == (1, 1.0)  # when the losses come
    slow = replace(pool, forwards=[[20, 10, 15]] * 2)
    found = script.run_climbs(slow, setting, 200, 2)
    assert (found.used, found.used_bad, found.earned_bad) == (1, 0, 1)  # the fastest is used, not the last


def test_parts_of_a_ladder(script: Any) -> None:
    pool = script.Pool("pool", "answer", False, ["a", "b", "c"], [2], LOSSES, [[20, 10, 5, 2]] * 200)
    stops, others = pool.only(stops=True), pool.only(stops=False)
    settings = [script.Setting(0.1, ladder=ladder) for ladder in ("all", "stop", "transfers")]
    results = [script.run_climbs(pool, setting, 1500, 2) for setting in settings]
    results[0] = replace(results[0], served=[1.5])
    results[2] = replace(results[2], served=[1.9])
    assert "on pool, transfers alone answer faster than both." in render(script, pool, results)
    assert "delays" not in render(script, pool, [replace(results[0], served=[2.0]), *results[1:]])
    assert (stops.rungs, stops.free, stops.forwards[0], stops.losses[1]) == (["b"], [1], [20, 5], [0.0])
    assert (others.rungs, others.free, others.forwards[0], others.losses[1]) == (
        ["a", "c"],
        [],
        [20, 10, 2],
        [0.0, 1.0],
    )


def test_the_page(script: Any) -> None:
    results = [script.run_climbs(make_pool(script), script.Setting(0.1), 600, 2)]
    page = render(script, make_pool(script), results)
    assert "## pool" in page
    assert "`b` | 5.00% | 4.00x" in page
    assert "0 of 2 climbs ever used a bad rung; 0.0% in the worst setting, where delta = 5% is allowed" in page
    assert np.isfinite(results[0].served).all()
    assert script.draw({"pools": {"pool": 1}, "climbs": [asdict(one) for one in results]}).axes


def render(script: Any, pool: Any, results: Any) -> str:
    """Return the page on one line."""
    numbers = {"runs": 2, "pools": {"pool": 200}, "losses": {"pool": "answer"}}
    numbers |= {"ladders": {"pool": script.describe_rungs(pool)}, "climbs": [asdict(one) for one in results]}
    return " ".join(importlib.import_module("page").render("climb", numbers).split())

"""Betting keeps delta where the risk is known, whenever one looks, and is powerful enough to be of use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from foretell.certify.betting import Array, EProcess, Hypothesis, betting_p_values, bounds, log_wealths, zeros_needed
from foretell.errors import RequestError

HYPOTHESES: tuple[Hypothesis, Hypothesis] = ("above", "at most")
DELTA, RUNS = 0.05, 2000
# A test that rejects in exactly 5% of the runs does so in more than this with a chance of one in a thousand.
LIMIT = int(stats.binom.ppf(0.999, RUNS, DELTA))


def draw(kind: str, risk: float, shape: tuple[int, int], seed: int) -> Array:
    """Return losses with a mean of `risk`: zeros and ones, zeros and some shares, or a spread around the mean."""
    rng: Any = np.random.default_rng(seed)
    if kind == "yes or no":
        return np.asarray(rng.random(shape) < risk, dtype=float)
    if kind == "shares":
        return np.where(rng.random(shape) < 4 * risk, rng.uniform(0, 0.5, shape), 0.0)
    spread: Array = rng.beta(5 * risk, 5 * (1 - risk), shape)
    return spread


@pytest.mark.parametrize("kind", ["yes or no", "shares", "spread"])
@pytest.mark.parametrize("hypothesis", HYPOTHESES)
def test_the_wealth_reaches_1_over_delta_in_at_most_delta_of_the_runs(kind: str, hypothesis: Hypothesis) -> None:
    """The risk is exactly eps, every one of 400 losses is looked at, and the best moment counts."""
    peaks = log_wealths(draw(kind, 0.1, (RUNS, 400), 5), 0.1, hypothesis).max(axis=1)
    rejected = int((peaks >= -math.log(DELTA)).sum())
    assert rejected <= LIMIT
    assert rejected > RUNS * DELTA / 10, "nor is delta left unused"


@pytest.mark.parametrize("hypothesis", HYPOTHESES)
def test_the_mean_wealth_is_1_if_the_risk_is_eps(hypothesis: Hypothesis) -> None:
    """Over all 2^10 outcomes with their probabilities: exactly the property that Ville's inequality needs."""
    outcomes = (np.arange(1024)[:, None] >> np.arange(10)) & 1
    chances = np.prod(np.where(outcomes, 0.3, 0.7), axis=1)
    wealths = np.exp(log_wealths(outcomes, 0.3, hypothesis))
    assert chances @ wealths == pytest.approx(np.ones(10))


@pytest.mark.parametrize("hypothesis", HYPOTHESES)
@pytest.mark.parametrize("risk", [1e-6, 0.01, 0.3, 0.9, 1 - 1e-6])
def test_no_loss_ruins(hypothesis: Hypothesis, risk: float) -> None:
    for losses in (np.ones(1000), np.zeros(1000)):
        assert np.isfinite(log_wealths(losses, risk, hypothesis)).all()


@pytest.mark.parametrize("hypothesis", HYPOTHESES)
def test_adding_loss_by_loss_gives_the_same_as_all_at_once(hypothesis: Hypothesis) -> None:
    losses = draw("spread", 0.02, (1, 200), 1)[0]
    process, found = EProcess(0.03, hypothesis), []
    for loss in losses.tolist():
        process.add(loss)
        found.append(process.log_wealth)
    assert found == pytest.approx(log_wealths(losses, 0.03, hypothesis))
    assert process.log_peak == pytest.approx(max(0.0, *found))
    assert process.count == 200
    assert process.total == pytest.approx(losses.sum())
    assert (max(found) > 0.5) == (hypothesis == "above")


def test_a_rejection_stays_although_the_wealth_falls() -> None:
    process = EProcess(0.1, "above")
    assert process.log_wealth == process.log_peak == 0
    for _ in range(40):
        process.add(0)
    assert process.rejects(0.05)
    assert not process.rejects(0.001)
    for _ in range(20):
        process.add(1)
    assert process.log_wealth < 0
    assert process.rejects(0.05)
    zeros_then_ones = np.repeat([0.0, 1.0], [40, 20])
    assert float(betting_p_values(zeros_then_ones, 0.1)) == pytest.approx(math.exp(-process.log_peak))
    assert float(betting_p_values(zeros_then_ones[::-1], 0.1)) == 1


@pytest.mark.parametrize(("risk", "most"), [(0.03, 416), (0.05, 139), (0.1, 40)])
def test_a_risk_that_rose_raises_the_alarm_soon(risk: float, most: int) -> None:
    """The median number of losses until "the risk is at most 1%" is rejected at level 1%."""
    wealths = log_wealths(draw("yes or no", risk, (1001, 3 * most), 3), 0.01, "at most")
    alarms = wealths >= math.log(100)
    assert np.median(np.where(alarms.any(axis=1), alarms.argmax(axis=1) + 1, 9 * most)) <= most


def test_losses_that_vary_little_are_certified_where_zeros_and_ones_are_not() -> None:
    shares, coins = draw("spread", 0.007, (200, 300), 1), draw("yes or no", 0.007, (200, 300), 1)
    assert (betting_p_values(shares, 0.02) <= 0.05).mean() > 0.75
    assert (betting_p_values(coins, 0.02) <= 0.05).mean() < 0.5


@pytest.mark.parametrize("kind", ["yes or no", "shares", "spread"])
def test_each_bound_fails_in_at_most_delta_of_the_runs(kind: str) -> None:
    found = np.array([bounds(one, 0.1) for one in draw(kind, 0.1, (100, 200), 2)])
    limit = stats.binom.ppf(0.999, 100, 0.1)
    assert (found[:, 0] > 0.1).sum() <= limit
    assert (found[:, 1] < 0.1).sum() <= limit


def test_a_bound_is_where_the_test_rejects() -> None:
    losses = draw("shares", 0.05, (1, 300), 4)[0]
    low, high = bounds(losses, 0.05)
    assert 0 < low < losses.mean() < high < 0.1
    assert float(betting_p_values(losses, high)) == pytest.approx(0.05)
    assert log_wealths(losses, low, "at most").max() == pytest.approx(math.log(20))


def test_bounds_of_more_losses_are_never_wider() -> None:
    losses = draw("yes or no", 0.3, (1, 60), 4)[0]
    low, high = np.transpose([bounds(losses[:count], 0.05) for count in range(1, 61)])
    assert (np.diff(low) >= 0).all()
    assert (np.diff(high) <= 0).all()


def test_bounds_of_few_and_of_extreme_losses() -> None:
    for losses in ([0.0], [0.5], [1.0]):
        low, high = bounds(np.array(losses), 0.05)
        assert 0 <= low < losses[0] + (losses[0] == 0) <= 1
        assert losses[0] - (losses[0] == 1) < high <= 1
    low, high = bounds(np.zeros(1000), 0.05)
    assert low == 0
    assert stats.beta.ppf(0.95, 1, 1000) < high < 1.1 * stats.beta.ppf(0.95, 1, 1000)
    low, high = bounds(np.ones(1000), 0.05)
    assert high == 1
    assert low > 0.98


def test_a_million_losses_neither_overflow_nor_lose_digits() -> None:
    losses = np.zeros(1_000_000)
    expected = 1e6 * math.log1p(0.99 / 9) + math.log(0.8)
    assert log_wealths(losses, 0.1, "above")[-1] == pytest.approx(expected)
    assert float(betting_p_values(losses, 0.1)) == 0
    process = EProcess(0.1, "above")
    process._logs += 1e6  # as after many wins
    process.add(0.0)
    assert math.isfinite(process.log_wealth)


def test_tables_of_any_shape() -> None:
    losses = draw("shares", 0.01, (6, 50), 1)
    found = betting_p_values(losses.reshape(2, 3, 50), 0.02)
    assert found.shape == (2, 3)
    assert found.ravel().tolist() == [float(betting_p_values(one, 0.02)) for one in losses]


def test_what_is_refused() -> None:
    for loss in (-0.1, 1.1, math.nan):
        with pytest.raises(RequestError, match=r"between 0 and 1, got"):
            EProcess(0.1, "above").add(loss)
    for losses in (np.array([0.1, 1.5]), np.array([math.nan])):
        with pytest.raises(RequestError, match="between 0 and 1"):
            betting_p_values(losses, 0.1)
    with pytest.raises(RequestError, match="risk must be a number above 0"):
        EProcess(1, "above")
    with pytest.raises(RequestError, match="hypothesis"):
        EProcess(0.1, "below")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="delta must be a number above 0"):
        EProcess(0.1, "above").rejects(0)
    with pytest.raises(RequestError, match="delta must be"):
        bounds(np.zeros(3), 5)
    for shaped in (np.zeros(0), np.zeros((2, 3))):
        with pytest.raises(RequestError, match="at least one number"):
            bounds(shaped, 0.05)


@pytest.mark.parametrize(("risk", "delta", "graded"), [(0.1, 0.05, True), (0.1, 0.05, False), (0.02, 0.04, True)])
def test_so_many_zeros_are_needed_and_no_fewer(risk: float, delta: float, graded: bool) -> None:
    test, count = EProcess(risk, "above", graded=graded), 0
    while not test.rejects(delta):
        test.add(0.0)
        count += 1
    assert zeros_needed(risk, delta, graded=graded) == count

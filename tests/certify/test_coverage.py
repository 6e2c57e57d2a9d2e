"""Coverage counts what it should, and can come out badly: certificates hold as often as promised and no more often."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from foretell.certify.coverage import Coverage, Sets
from foretell.certify.outcomes import Array, Outcomes
from foretell.errors import RequestError


def outcomes(changed: Array, steps: Array, full: int | None = None) -> Outcomes:
    return Outcomes(steps, np.full(changed.shape[1], full or steps.max() * 2), changed, changed & False)


def test_halves_are_halves_and_differ() -> None:
    made = Sets.of(9, 50, 10, 1).halves
    assert made.shape == (50, 9)
    assert (made.sum(axis=1) == 4).all()
    assert len({row.tobytes() for row in made}) > 25
    assert (made == Sets.of(9, 50, 10, 1).halves).all()
    assert (made != Sets.of(9, 50, 10, 2).halves).any()


def test_draws_are_as_large_as_halves_and_put_examples_back() -> None:
    made = Sets.of(9, 50, 2000, 1)
    assert made.draws.shape == (2000, 9)
    assert made.counts.shape == (2050, 9)
    assert (made.counts.sum(axis=1) == made.size).all()
    assert made.draws.mean(axis=0) == pytest.approx(np.full(9, 4 / 9), abs=0.06), "every example alike"
    # Of 4 examples drawn independently from 9, all are different in 9 * 8 * 7 * 6 / 9^4 of the draws.
    assert (made.draws.max(axis=1) == 1).mean() == pytest.approx(3024 / 6561, abs=0.04)
    assert (made.draws == Sets.of(9, 50, 2000, 1).draws).all()
    assert (made.draws != Sets.of(9, 50, 2000, 2).draws).any()


def test_by_hand() -> None:
    """Two rules on four examples; the bolder one, of 2 steps, changes the last example."""
    changed = np.array([[False] * 4, [False, False, False, True]])
    steps = np.array([[5] * 4, [2] * 4])
    halves = np.array([[True, True, False, False], [False, False, True, True]])
    sets = Sets(halves, np.array([[2, 0, 0, 0], [0, 0, 0, 2], [1, 0, 1, 0], [1, 0, 0, 1]]))
    found = Coverage.of(sets, "answer", outcomes(changed, steps))
    assert found.errors.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 2], [0, 0, 0], [0, 0, 1]]
    assert found.held_out.tolist() == [[0, 0, 0.5], [0, 0, 0]]
    assert found.overall.tolist() == [0, 0, 0.25]
    assert found.speedup.tolist() == [[1, 2, 5], [1, 2, 5]]
    assert found.gained.tolist() == [[1, 2, 5]] * 6
    hoped = found.evaluate_naive(0.1)  # the first split and two of the draws see no error and take the bolder rule
    assert (hoped.speedup, hoped.risk, hoped.above, hoped.violations, hoped.stops) == (3.5, 0.25, 0.5, 0.5, 1.0)
    assert found.evaluate_naive(0.3).violations == 0
    never = found.evaluate_certified(0.1, 0.95)  # two examples show nothing
    assert (never.speedup, never.risk, never.above, never.violations, never.stops) == (1.0, 0.0, 0.0, 0.0, 0.0)
    sure = found.evaluate_certified(0.7, 0.9)
    assert (sure.speedup, sure.stops) == (3.5, 1.0)
    assert found.choose_certified(0.7, 0.9).tolist() == [2, 1, 2, 1, 2, 1]
    assert (found.evaluate_fixed(0, 0.1).speedup, found.evaluate_fixed(1, 0.1).speedup) == (2.0, 5.0)
    assert (found.evaluate_fixed(1, 0.1).above, found.evaluate_fixed(1, 0.1).violations) == (0.5, 1.0)
    assert Coverage.of(sets, "success", outcomes(changed, steps)).evaluate_fixed(1, 0.1).violations == 0


def test_a_rule_just_above_eps_is_certified_as_often_as_the_binomial_says() -> None:
    """41 errors among 2000 are a risk of 2.05%, too much for eps = 2%. Whoever puts nothing back sees it too rarely."""
    pool, errors, size, draws, delta = 2000, 41, 1000, 4000, 0.05
    changed = np.zeros((2, pool), dtype=bool)
    changed[1, :errors] = True
    steps = np.tile([[5], [2]], pool)
    found = Coverage.of(Sets.of(pool, 200, draws, 3), "answer", outcomes(changed, steps))
    most = int(stats.binom.ppf(delta, size, 0.02)) - 1  # errors with which it passes
    promised, spared = stats.binom.cdf(most, size, errors / pool), stats.hypergeom.cdf(most, pool, errors, size)
    noise = 4 * float(np.sqrt(promised / draws))
    assert promised - noise > 2 * spared, "the test can tell the two apart"
    assert found.evaluate_certified(0.02, 1 - delta).violations == pytest.approx(promised, abs=noise)
    assert found.evaluate_naive(0.02).violations == pytest.approx(stats.binom.cdf(20, size, errors / pool), abs=0.04)
    assert found.evaluate_naive(0.02).violations > 0.4
    assert found.evaluate_certified(0.02, 0.6).violations > 0.3, "at another confidence it comes out badly"


def test_a_certificate_holds_where_hope_does_not() -> None:
    rng = np.random.default_rng(0)
    hardness, true = rng.random(2000), np.geomspace(0.001, 0.1, 60)
    steps = np.tile(np.arange(60, 0, -1)[:, None], 2000)
    found = Coverage.of(Sets.of(2000, 200, 1000, 4), "answer", outcomes(hardness < true[:, None], steps))
    certified, hoped = found.evaluate_certified(0.02, 0.95), found.evaluate_naive(0.02)
    assert certified.violations <= 0.05
    assert hoped.violations > 0.3
    # The errors of a pool that one half has not, the other half has: this share may be above delta.
    assert certified.above < 0.15
    assert hoped.above > 0.4
    assert 1 < certified.speedup < hoped.speedup


def test_families_that_share_delta_by_hand() -> None:
    """A hundred examples without an error show 5% at 99.4%, so three families may share a delta of 5%, and nine not."""
    clean, some = np.zeros((2, 200), dtype=bool), np.zeros((1, 200), dtype=bool)
    slow, fast = (outcomes(clean, np.tile([[first], [last]], 200), 16) for first, last in ((8, 4), (4, 2)))
    some[0, :100] = True
    wrong = outcomes(some, np.ones((1, 200)), 16)
    sets = Sets.of(200, 20, 30, 5)
    found = Coverage.of(sets, "answer", slow, fast, wrong)
    assert found.families == (2, 2, 1)
    assert found.choose_certified(0.05, 0.95).tolist() == [4] * 50, (
        "the fastest of what is certified, not the fastest of all"
    )
    kept = found.evaluate_certified(0.05, 0.95)
    assert (kept.speedup, kept.risk, kept.above, kept.violations, kept.stops) == (8.0, 0.0, 0.0, 0.0, 1.0)
    assert Coverage.of(sets, "answer", wrong, fast, slow).choose_certified(0.05, 0.95).tolist() == [3] * 50
    nine = Coverage.of(sets, "answer", slow, fast, *[wrong] * 7)
    assert nine.evaluate_certified(0.05, 0.95).stops == 0.0
    assert nine.evaluate_certified(0.05, 0.94).stops == 1.0
    assert nine.evaluate_certified(0.05, 0.95, [0.02] * 2 + [0.96] + [0] * 6).stops == 0.0, "those that pass get little"
    assert nine.evaluate_certified(0.05, 0.95, [0.12] * 2 + [0.76] + [0] * 6).stops == 1.0
    assert found.evaluate_naive(0.05).speedup == 8.0


def test_the_fastest_is_the_one_on_the_calibration_set() -> None:
    """One family is fast on the first half of the examples, the other on the second; each split says its own."""
    first = np.arange(40) < 20
    one, other = (outcomes(np.zeros((1, 40), dtype=bool), np.where(where, 1, 8)[None], 16) for where in (first, ~first))
    sets = Sets(np.array([first, ~first]), np.array([first * 1, ~first * 1]))
    found = Coverage.of(sets, "answer", one, other)
    assert found.choose_certified(0.3, 0.95).tolist() == [1, 2, 1, 2]
    assert found.evaluate_certified(0.3, 0.95).speedup == 2.0, "and on the other half it is the slow one"


def test_sharing_delta_keeps_the_promise_that_picking_breaks() -> None:
    """Ten families of one rule each, a little above eps: taking what passes, each at delta, is often wrong."""
    pool, eps = 1000, 0.05
    rng = np.random.default_rng(1)
    made = []
    for _ in range(10):
        changed = np.zeros((1, pool), dtype=bool)
        changed[0, rng.permutation(pool)[:51]] = True
        made.append(outcomes(changed, np.ones((1, pool)), 2))
    sets = Sets.of(pool, 10, 2000, 2)
    picked = np.max([Coverage.of(sets, "answer", one).choose_certified(eps, 0.95)[10:] for one in made], axis=0)
    assert (picked > 0).mean() > 0.15
    assert 0 < Coverage.of(sets, "answer", *made).evaluate_certified(eps, 0.95).violations <= 0.05


def test_sets_are_of_one_size_and_leave_some_over() -> None:
    none = np.zeros((0, 4), dtype=int)
    for sides in ([[True] * 4], [[False] * 4], [[True, False, False, False], [True, True, False, False]]):
        with pytest.raises(RequestError, match="must have the same size"):
            Sets(np.array(sides), none)
    with pytest.raises(RequestError, match="sets of 1, 2 from 4"):
        Sets(np.array([[True, True, False, False]]), np.array([[0, 1, 0, 0]]))


def test_families_are_of_the_same_examples() -> None:
    some = outcomes(np.zeros((1, 4), dtype=bool), np.ones((1, 4)))
    sets = Sets.of(4, 2, 2, 0)
    others = outcomes(np.zeros((1, 5), dtype=bool), np.ones((1, 5)))
    for found in ((), (some, outcomes(some.changed, some.steps, 9)), (some, others)):
        with pytest.raises(RequestError, match="same examples"):
            Coverage.of(sets, "answer", *found)

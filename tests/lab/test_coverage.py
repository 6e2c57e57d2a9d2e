"""Splits count what they should, and show a certificate that holds beside a choice that does not."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import RequestError
from foretell.lab.coverage import Splits, halves
from foretell.lab.outcomes import Array, Outcomes


def outcomes(changed: Array, steps: Array) -> Outcomes:
    return Outcomes(steps, np.full(changed.shape[1], steps.max() * 2), changed, changed & False)


def test_halves_are_halves_and_differ() -> None:
    made = halves(9, 50, 1)
    assert made.shape == (50, 9)
    assert (made.sum(axis=1) == 4).all()
    assert len({row.tobytes() for row in made}) > 25
    assert (made == halves(9, 50, 1)).all()
    assert (made != halves(9, 50, 2)).any()


def test_by_hand() -> None:
    """Two rules on four examples; the bolder one, of 2 steps, changes the last example."""
    changed = np.array([[False] * 4, [False, False, False, True]])
    steps = np.array([[5] * 4, [2] * 4])
    sides = np.array([[True, True, False, False], [False, False, True, True]])
    found = Splits.of(outcomes(changed, steps), "consistency", sides)
    assert found.calibration.tolist() == [[0, 0], [0, 1]]
    assert found.held_out.tolist() == [[0, 0, 0.5], [0, 0, 0]]
    assert found.overall.tolist() == [0, 0, 0.25]
    assert found.speedup.tolist() == [[1, 2, 5], [1, 2, 5]]
    hoped = found.hoped(0.1)  # the first split sees no error and takes the bolder rule, the second does not
    assert (hoped.speedup, hoped.risk, hoped.above, hoped.above_all, hoped.stops) == (3.5, 0.25, 0.5, 0.5, 1.0)
    assert found.hoped(0.3).above_all == 0
    never = found.certified(0.1, 0.95)  # two examples show nothing
    assert (never.speedup, never.risk, never.above, never.stops) == (1.0, 0.0, 0.0, 0.0)
    sure = found.certified(0.7, 0.9)
    assert (sure.speedup, sure.stops) == (3.5, 1.0)
    assert (found.fixed(0, 0.1).speedup, found.fixed(1, 0.1).speedup) == (2.0, 5.0)
    assert (found.fixed(1, 0.1).above, found.fixed(1, 0.1).above_all) == (0.5, 1.0)
    assert Splits.of(outcomes(changed, steps), "success", sides).fixed(1, 0.1).above_all == 0


def test_a_certificate_holds_where_hope_does_not() -> None:
    rng = np.random.default_rng(0)
    hardness, true = rng.random(2000), np.geomspace(0.001, 0.1, 60)
    steps = np.tile(np.arange(60, 0, -1)[:, None], 2000)
    found = Splits.of(outcomes(hardness < true[:, None], steps), "consistency", halves(2000, 200, 4))
    certified, hoped = found.certified(0.02, 0.95), found.hoped(0.02)
    assert certified.above_all <= 0.05
    assert hoped.above_all > 0.3
    # The errors of a pool that one half has not, the other half has: this share may be above delta.
    assert certified.above < 0.15
    assert hoped.above > 0.4
    assert 1 < certified.speedup < hoped.speedup


def test_a_split_needs_both_sides() -> None:
    some = outcomes(np.zeros((1, 4), dtype=bool), np.ones((1, 4)))
    for sides in ([[True] * 4], [[False] * 4], [[True, False, False, False], [True, True, False, False]]):
        with pytest.raises(RequestError, match="equally many"):
            Splits.of(some, "consistency", np.array(sides))

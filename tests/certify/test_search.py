"""Rungs are tested in their order, and only what was decoded and passed is certified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foretell.certify.betting import Array, betting_p_values
from foretell.certify.ladders import Ladder
from foretell.certify.losses import LOSSES
from foretell.certify.risk import binomial_p_values, examples_needed, upper_bound
from foretell.certify.search import (
    LadderSearch,
    RiskGoal,
    RungResult,
    Trial,
    best_p_value,
    certify_ladder,
    find_fastest,
    predict_speedup,
)
from foretell.errors import RequestError

N = 100
DELTA = 0.05
GOAL = RiskGoal(risk=0.1, confidence=0.95, loss="answer")
GRADED = replace(GOAL, loss="tokens")
LADDER = Ladder("mine", tuple(f"full steps={steps}" for steps in (16, 8, 4, 2)))


def result(errors: int, cost: float = 1.0, seen: int = N) -> RungResult:
    losses = np.zeros(seen)
    losses[:errors] = 1
    return RungResult(losses, np.full(seen, cost), np.full(seen, 8.0), N)


def test_testing_ends_at_the_first_failure() -> None:
    """5 errors of 100 reject a risk of 10% at 0.0576, so 4 are the most that pass."""
    taken: list[int] = []

    def results() -> Iterator[RungResult]:
        for number, errors in enumerate((0, 4, 5, 0)):
            taken.append(number)
            yield result(errors, 8.0 / (number + 1))

    found = certify_ladder(LADDER, results(), GOAL, DELTA)
    assert taken == [0, 1, 2], "nothing is decoded after a failure"
    assert [one.certified for one in found.trials] == [True, True, False]
    assert [one.rung for one in found.trials] == [*LADDER.rungs[:3]]
    assert [one.empirical_risk for one in found.trials] == [0.0, 0.04, 0.05]
    assert [one.speedup for one in found.trials] == pytest.approx([1, 2, 3])
    assert [one.p_value for one in found.trials] == binomial_p_values(np.array([0, 4, 5]), N, 0.1).tolist()
    assert found.fastest == found.trials[1]
    assert found.bound == upper_bound(result(4).losses, 0.95, graded=False)
    assert found.bound < 0.1


def test_every_rung_is_shown_but_not_certified_after_a_failure() -> None:
    found = certify_ladder(LADDER, map(result, (0, 5, 0, 0)), GOAL, DELTA, every=True)
    assert [one.certified for one in found.trials] == [True, False, False, False]
    assert found.trials[3].p_value < DELTA
    assert found.fastest == found.trials[0]
    assert found.bound == upper_bound(np.zeros(N), 0.95, graded=False), "of the certified rung"


def test_a_slower_rung_after_a_faster_one_is_not_chosen() -> None:
    """Seconds do not always fall along a ladder; every certified rung may be used."""
    tested = [result(0, 2.0), result(2, 1.0), result(3, 4.0), result(9, 0.5)]
    found = certify_ladder(LADDER, tested, GOAL, DELTA)
    assert [one.certified for one in found.trials] == [True, True, True, False]
    assert found.fastest == found.trials[1]
    assert found.bound == upper_bound(tested[1].losses, 0.95, graded=False), "of the chosen rung"
    same = certify_ladder(LADDER, [result(0), result(1), result(9)], GOAL, DELTA)
    assert same.fastest == same.trials[1], "the last of equal ones"


def test_the_level_is_the_one_given() -> None:
    (p_value,) = (one.p_value for one in certify_ladder(LADDER, [result(4)], GOAL, DELTA).trials)
    for delta, passed in ((p_value, True), (0.999 * p_value, False)):
        found = certify_ladder(LADDER, [result(4)], GOAL, delta)
        assert (found.fastest is not None) is passed
        assert (found.bound > 0) is passed


def test_a_graded_loss_is_tested_by_betting() -> None:
    losses = np.tile([0.04, 0.02], N // 2)
    one = RungResult(losses, np.ones(N), np.full(N, 3.0), N)
    (trial,) = certify_ladder(LADDER, [one], GRADED, DELTA).trials
    assert trial.p_value == float(betting_p_values(losses, 0.1)) <= DELTA
    assert trial.empirical_risk == pytest.approx(0.03)
    assert (trial.speedup, trial.certified) == (3.0, True)
    with pytest.raises(RequestError, match="losses between 0 and 1 are graded"):
        certify_ladder(LADDER, [one], GOAL, DELTA)


@pytest.mark.parametrize("goal", [GOAL, GRADED])
def test_a_rung_that_ended_early_has_the_p_value_it_could_have_reached(goal: RiskGoal) -> None:
    early = result(7, seen=30)
    early = replace(early, losses=0.3 * early.losses) if goal is GRADED else early
    whole = np.r_[early.losses, np.zeros(N - 30)]
    (trial,) = certify_ladder(LADDER, [early], goal, DELTA).trials
    assert trial.p_value == best_p_value(early.losses, N, goal) == best_p_value(whole, N, goal)
    assert trial.p_value < best_p_value(early.losses, 30, goal), "the examples that were left out count as no losses"
    assert (trial.examples, trial.certified) == (30, False)
    assert trial.empirical_risk == pytest.approx(early.losses.mean())


@pytest.mark.parametrize("goal", [GOAL, GRADED])
def test_examples_that_were_not_decoded_certify_nothing(goal: RiskGoal) -> None:
    found = certify_ladder(LADDER, [result(0, seen=N - 1), result(0)], goal, DELTA)
    assert found.trials[0].p_value <= DELTA
    assert (found.fastest, found.bound, len(found.trials)) == (None, 0.0, 1)


def test_the_fastest_of_several_ladders() -> None:
    def search(name: str, *speedups: float) -> LadderSearch:
        trials = tuple(Trial(name, 0.0, 0.0, abs(one), N, certified=one > 0) for one in speedups)
        return LadderSearch(Ladder(name, (name,)), trials, 0.0)

    none, slow, fast = search("none", -9.0), search("slow", 1.5, 2.0, -8.0), search("fast", 2.5)
    assert find_fastest([none, slow, fast]) is fast
    assert find_fastest([slow, none]) is slow
    assert find_fastest([none, search("other", -10.0)]) is none
    assert slow.fastest == slow.trials[1]


def test_a_ladder_is_known_by_its_rungs() -> None:
    assert LADDER.key == replace(LADDER, settings=(1.0, 2.0, 3.0, 4.0)).key
    others = [
        replace(LADDER, name="x"),
        replace(LADDER, rungs=LADDER.rungs[:3]),
        replace(LADDER, rungs=LADDER.rungs[::-1]),
    ]
    assert len({LADDER.key, *(one.key for one in others)}) == 4
    with pytest.raises(RequestError, match="the ladder 'mine' has no rungs"):
        Ladder("mine", ())


@pytest.mark.parametrize("goal", [GOAL, GRADED])
@pytest.mark.parametrize("count", [1, 60, 1000])
def test_the_best_risk_is_the_least_that_can_be_shown(goal: RiskGoal, count: int) -> None:
    best = goal.best_risk(count, DELTA)
    graded = goal.measure.graded
    assert examples_needed(best, 1 - DELTA, graded) <= count
    assert examples_needed(0.999 * best, 1 - DELTA, graded) > count
    assert best < goal.best_risk(count, DELTA / 2)
    if not graded:
        assert best == pytest.approx(1 - DELTA ** (1 / count), abs=1e-9)


def test_too_few_examples_at_a_share_of_delta() -> None:
    goal = RiskGoal(risk=0.01, family="entropy")
    assert goal.shortage(299) is None
    assert goal.shortage(321, 0.8) is None
    assert (goal.shortage(320, 0.8) or "").endswith("at least 321 are needed without a single error, 500 with one")
    later = goal.shortage(400, 0.16) or ""
    assert later.endswith("; families and looks share the error probability, and one family at a first look needs 321")
    assert "without a single error;" in (replace(goal, loss="tokens").shortage(400, 0.16) or ""), "by betting"


def pilot(*shares: float, size: int = 400, graded: bool = False) -> Array:
    """Return the losses of rungs with these risks: so many ones, or the same small loss everywhere."""
    if graded:
        return np.array([np.full(size, share) for share in shares])
    return np.array([np.arange(size) < round(share * size) for share in shares]).astype(float)


@pytest.mark.parametrize("goal", [GOAL, GRADED])
def test_the_speedup_is_predicted_where_rungs_are_clear(goal: RiskGoal) -> None:
    graded, speedups = goal.measure.graded, np.array([2.0, 4.0, 8.0])

    def predicted(*risks: float, **more: Any) -> float:
        return predict_speedup(pilot(*risks, graded=graded), speedups, 300, goal, DELTA, **more)

    assert predicted(0.0, 0.01, 0.4) == pytest.approx(4.0, rel=0.02)
    assert predicted(0.4, 0.0, 0.0) == pytest.approx(1.0, rel=0.02), "what comes after a failure is not reached"
    assert predicted(0.0, 0.0, 0.01) == pytest.approx(8.0, rel=0.02)
    assert predicted(0.0, 0.09, 0.4) == predicted(0.0, 0.09, 0.4, seed=0), "the same draws every time"
    unsure = [predicted(0.0, 0.06, 0.4, seed=seed) for seed in range(4)]
    if not graded:
        assert len({*unsure}) > 1
        assert all(2.2 < one < 3.8 for one in unsure), "sometimes certified, sometimes not"


@pytest.mark.parametrize("goal", [GOAL, GRADED])
def test_a_few_examples_without_a_loss_prove_little(goal: RiskGoal) -> None:
    few, many = (predict_speedup(np.zeros((1, size)), np.array([8.0]), 300, goal, DELTA) for size in (3, 400))
    assert many == 8.0
    assert few < 7.0
    enough = predict_speedup(np.zeros((1, 400)), np.array([8.0]), 20, goal, DELTA)
    assert enough == 1.0, "20 examples can show nothing, whatever the pilot says"


def test_a_goal_is_checked() -> None:
    assert RiskGoal(loss="consistency").measure is LOSSES["answer"]
    for wish, says in (
        ({"cost": "money"}, "unknown cost 'money'"),
        ({"loss": "anwser"}, "did you mean 'answer'"),
        ({"risk": 0.0}, "risk must be a number above 0"),
        ({"confidence": 1.0}, "confidence must be a number above 0"),
        ({"family": "none"}, "unknown family 'none'"),
    ):
        with pytest.raises(RequestError, match=says):
            RiskGoal(**wish)

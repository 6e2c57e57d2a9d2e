"""Test the rungs of ladders in order, and find the fastest one whose risk is shown to be small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foretell.certify.betting import Array, bounds
from foretell.certify.ladders import Ladder
from foretell.certify.losses import Loss, Measure, find_loss
from foretell.certify.risk import (
    binomial_p_values,
    check_shares,
    confidence_at,
    examples_needed,
    look_share,
    next_useful,
    p_values,
    too_few,
    upper_bound,
)
from foretell.engine.certificate import COSTS
from foretell.errors import RequestError, one_of
from foretell.evaluation.intervals import exact
from foretell.policies.stop.families import ALL, Family, find_families, share_delta

Families = str | Family | Sequence[str | Family]
DRAWS = 200  # simulated calibration sets per prediction


@dataclass(frozen=True, slots=True)
class RiskGoal:
    """The risk to guarantee, and what is compared."""

    risk: float = 0.01  # eps: the largest mean loss
    confidence: float = 0.95  # 1 - delta: the probability that the certificate holds
    loss: str | Measure | Loss = "answer"  # see `losses`
    family: Families = ALL  # of stopping rules
    against: str | None = None  # the recipe to compare with; None: the same recipe without stopping
    cost: str = "forwards"  # what a speedup counts: one of COSTS

    def __post_init__(self) -> None:
        check_shares(self.risk, self.confidence)
        object.__setattr__(self, "loss", find_loss(self.loss))  # once, because it may run a user's file
        find_families(self.family)
        one_of("cost", self.cost, COSTS, RequestError)

    @property
    def measure(self) -> Loss:
        return find_loss(self.loss)

    @property
    def families(self) -> tuple[Family, ...]:
        return find_families(self.family)

    @property
    def shares(self) -> dict[str, float]:
        """The share of delta of each family, by name. They are fixed before any data is seen and add up to 1."""
        return dict(zip((one.name for one in self.families), share_delta(self.families), strict=True))

    def shortage(self, count: int, share: float = 1.0) -> str | None:
        """Return a message if `count` examples are too few to certify anything at `share` of delta, otherwise None."""
        return too_few(count, self.risk, self.confidence, share, self.measure.graded)

    def next_useful(self, count: int) -> int:
        """Return the next number of examples that allows some family one error more than `count`, at a first look."""
        share = max(self.shares.values()) * look_share(1)
        return next_useful(count, self.risk, confidence_at(self.confidence, share))

    def best_risk(self, count: int, delta: float) -> float:
        """Return the least risk that `count` examples without any loss can show at the error probability `delta`."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            enough = 0 < middle < 1 and examples_needed(middle, 1 - delta, self.measure.graded) <= count
            low, high = (low, middle) if enough else (middle, high)
        return high


@dataclass(frozen=True, slots=True, eq=False)
class RungResult:
    """What one rung loses and costs on the examples of a calibration set, in their order."""

    losses: Array  # [n]
    costs: Array  # [n]
    full_costs: Array  # [n] of the recipe it is compared with
    planned: int  # size of the calibration set; if n is smaller, decoding ended because the rung could not pass

    @property
    def speedup(self) -> float:
        return float(self.full_costs.sum() / self.costs.sum())


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one rung on the calibration set."""

    rung: str  # its recipe
    empirical_risk: float
    p_value: float  # of the hypothesis "the risk is above the allowed one"; at least that if decoding ended early
    speedup: float  # in the goal's cost
    examples: int
    certified: bool


@dataclass(frozen=True, slots=True)
class LadderSearch:
    """The rungs of one ladder that were tested, the safest first."""

    ladder: Ladder
    trials: tuple[Trial, ...]
    bound: float  # upper bound of the risk of the fastest certified rung; 0 if there is none

    @property
    def fastest(self) -> Trial | None:
        """The fastest certified rung, the last of equal ones, or None. All certified rungs keep the risk together."""
        certified = [one for one in reversed(self.trials) if one.certified]
        return max(certified, key=lambda one: one.speedup, default=None)


def risk_interval(losses: Array, goal: RiskGoal) -> tuple[float, float]:
    """Return a 95% interval of a mean loss: exact for zeros and ones, by betting for graded losses."""
    if goal.measure.graded:
        low, high = bounds(losses, 0.025)
        return low, high
    return exact(round(float(losses.sum())), len(losses))


def tabulate_trials(search: LadderSearch, results: Sequence[RungResult], goal: RiskGoal) -> list[dict[str, Any]]:
    """Return one row per tested rung, ready for JSON; `results` are those of the search's trials."""
    return [
        {
            "recipe": trial.rung,
            "risk": trial.empirical_risk,
            "interval": list(risk_interval(result.losses, goal)),
            "p_value": trial.p_value,
            "speedup": trial.speedup,
            "examples": trial.examples,
            "certified": trial.certified,
        }
        for trial, result in zip(search.trials, results, strict=True)
    ]


def certify_ladder(
    ladder: Ladder, results: Iterable[RungResult], goal: RiskGoal, delta: float, *, every: bool = False
) -> LadderSearch:
    """Test rungs in their order, each at the level `delta`; only those before the first failure are certified.

    `results` are taken one by one, so a generator decodes a rung only after the one before has passed. `every` takes
    the results after a failure too, for tables.
    """
    trials: list[Trial] = []
    losses: dict[str, Array] = {}
    certified = True
    for rung, result in zip(ladder.rungs, results, strict=False):
        p_value = best_p_value(result.losses, result.planned, goal)
        certified = certified and p_value <= delta and len(result.losses) == result.planned
        losses[rung], size = result.losses, len(result.losses)
        trials.append(Trial(rung, float(result.losses.mean()), p_value, result.speedup, size, certified))
        if not certified and not every:
            break
    found = LadderSearch(ladder, tuple(trials), 0.0)
    if found.fastest is None:
        return found
    return replace(found, bound=upper_bound(losses[found.fastest.rung], 1 - delta, graded=goal.measure.graded))


def best_p_value(losses: Array, planned: int, goal: RiskGoal) -> float:
    """Return the p-value of `losses`, or the least one that is possible if some of `planned` examples are missing."""
    whole = np.concatenate([losses, np.zeros(planned - len(losses))])
    return float(p_values(whole, goal.risk, graded=goal.measure.graded))


def find_fastest(searches: Sequence[LadderSearch]) -> LadderSearch:
    """Return the search whose certified rung is the fastest; the first search if none certified anything."""
    return max(searches, key=lambda search: 0.0 if search.fastest is None else search.fastest.speedup)


def predict_speedup(
    losses: Array,
    speedups: Array,
    count: int,
    goal: RiskGoal,
    delta: float,
    draws: int = DRAWS,
    seed: int = 0,
    share: float = 1.0,
) -> float:
    """Return the expected speedup of the rung that `count` fresh examples would certify (1 if none).

    `losses` [rungs, m] of examples that have been seen, `speedups` [rungs]. Fresh examples are drawn with random
    weights (the Bayesian bootstrap), with half an unseen example that loses everything, so that a small sample without
    a loss does not count as proof. All losses are multiplied by `share`, to predict safer rungs. Used only to choose
    between ladders and to plan, never as evidence.
    """
    rng: Any = np.random.default_rng(seed)
    graded = goal.measure.graded
    draws = min(draws, max(20, 200_000 // count)) if graded else draws
    seen = share * np.hstack([losses, np.ones((len(losses), 1))])  # [rungs, m + 1]
    weights = rng.gamma(np.r_[np.ones(losses.shape[1]), 0.5], size=(draws, seen.shape[1]))
    weights /= weights.sum(axis=1, keepdims=True)
    if graded:
        drawn = np.stack([rng.choice(seen.shape[1], count, p=one) for one in weights])  # [draws, count]
        found = np.stack([p_values(row[drawn], goal.risk, graded=True) for row in seen], axis=1)
    else:
        errors = rng.multinomial(count, weights) @ seen.T  # [draws, rungs]
        found = binomial_p_values(errors, count, goal.risk)
    passed = np.cumprod(found <= delta, axis=1).sum(axis=1)
    return float(np.r_[1.0, speedups][passed].mean())

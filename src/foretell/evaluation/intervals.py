"""Confidence intervals and significance tests, from scipy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from foretell.extras import require_extra

LEVEL = 0.95
RESAMPLES = 10_000


class Interval(NamedTuple):
    low: float
    high: float


def wilson(right: int, count: int) -> Interval:
    """Return Wilson's 95% interval for a share."""
    found = scipy_stats().binomtest(right, count).proportion_ci(LEVEL, method="wilson")
    return Interval(float(found.low), float(found.high))


def mcnemar(lost: int, won: int) -> float:
    """Return the p value of McNemar's exact two-sided test, given the number of changes in each direction."""
    return float(scipy_stats().binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def bootstrap(differences: Sequence[float], seed: int = 0) -> Interval:
    """Return the 95% percentile bootstrap interval for the mean of paired differences."""
    values = np.asarray(differences, dtype=float)
    if len(values) < 2 or (values == values[0]).all():  # all resamples are equal
        return Interval(float(values[0]), float(values[0]))
    found = scipy_stats().bootstrap(
        (values,),
        np.mean,
        confidence_level=LEVEL,
        n_resamples=RESAMPLES,
        method="percentile",
        batch=500,
        rng=np.random.default_rng(seed),
    )
    return Interval(float(found.confidence_interval.low), float(found.confidence_interval.high))


def penalised_speedup(speedup: float, score: float, base: float) -> float | None:
    """Return speedup x (score / base)^4, which the SchED paper calls QPS; None if the base score is 0."""
    return speedup * (score / base) ** 4 if base else None


def scipy_stats() -> Any:
    """Return the module scipy.stats. Raises MissingExtraError if scipy is not installed."""
    require_extra("lab")
    from scipy import stats  # noqa: PLC0415  an extra

    return stats

"""Confidence intervals and significance tests, from scipy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def exact(right: int, count: int) -> Interval:
    """Return Clopper and Pearson's exact 95% interval for a share."""
    require_extra("lab")
    from scipy.special import betaincinv  # noqa: PLC0415  optional

    tail = (1 - LEVEL) / 2  # quantiles of beta distributions: a hundred times faster than scipy's binomtest
    low = betaincinv(right, count - right + 1, tail) if right > 0 else 0.0
    high = betaincinv(right + 1, count - right, 1 - tail) if right < count else 1.0
    return Interval(float(low), float(high))


def mcnemar(lost: int, won: int) -> float:
    """Return the p value of McNemar's exact two-sided test, given the number of changes in each direction."""
    return float(scipy_stats().binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def paired_difference(lost: int, won: int, count: int) -> Interval:
    """Return Tango's 95% score interval for the difference of two shares on the same `count` examples.

    `lost` examples are right only at first, `won` only afterwards; the others do not differ. The interval holds every
    difference that a score test does not reject. Unlike a bootstrap it is not empty if no pair differs: it then equals
    Wilson's for a share of 0, on either side. Tango, "Equivalence test and confidence interval for the difference in
    proportions for the paired-sample design" (1998).
    """
    found, squared = (won - lost) / count, float(scipy_stats().norm.ppf((1 + LEVEL) / 2)) ** 2

    def accepts(difference: float) -> bool:
        half = lost + won - (2 * count - won + lost) * difference
        # The likeliest share of losses, if this is the true difference.
        root = math.sqrt(max(0.0, half**2 + 8 * count * lost * difference * (1 - difference)))  # rounding
        share = (half + root) / (4 * count)
        variance = count * (2 * share + difference * (1 - difference))
        return (won - lost - count * difference) ** 2 <= squared * variance

    return Interval(*(_find_last(accepts, found, end) for end in (-1.0, 1.0)))


def _find_last(accepts: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the last accepted value on the way from `inside`, which is accepted, to `outside`."""
    for _ in range(50):  # halves the distance each time
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if accepts(middle) else (inside, middle)
    return inside


def bootstrap(numbers: Sequence[float], seed: int = 0) -> Interval:
    """Return the 95% percentile bootstrap interval for the mean; it is too narrow if few of the numbers differ."""
    values = np.asarray(numbers, dtype=float)
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

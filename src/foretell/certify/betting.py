"""Test a risk by betting on losses in [0, 1]: tests and bounds that may be looked at after every loss.

Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024). Someone who doubts a
hypothesis about the risk starts with a wealth of 1 and bets on every loss before seeing it. If the hypothesis is true,
no bet wins on average, so the wealth ever reaches 1 / delta with a probability of at most delta (Ville's inequality),
however often one looks and whenever one stops. If it is false, the wealth grows, the faster the less the losses vary.

The wealth is divided among a few constant bets in shares that are fixed in advance, and their sum is what counts. So
the wealth after all losses does not depend on their order, and the best of the bets soon dominates the sum. How often
such tests are wrong, and how soon they reject: docs/results/validity.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from foretell.errors import RequestError, one_of

Array = np.ndarray[Any, Any]
Hypothesis = Literal["above", "at most"]  # what is doubted: that the risk is above eps, or that it is at most eps

# Bets on small losses, as shares of the largest bet that a loss of 1 does not ruin, which is 1 / (1 - eps). Graded
# losses vary so little that nearly the largest bet is best; 0/1 losses with a risk of r eps call for 1 - r of it.
SMALL, SMALL_SHARES = np.array([0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.99]), np.array([0.2 / 6] * 6 + [0.8])
YES_NO_SHARES = np.array([0.01, 0.01, 0.04, 0.14, 0.25, 0.3, 0.25])  # of the same bets, if losses are only 0 or 1
# Bets on large losses: 1 + b is the risk, in multiples of a small eps, at which 0/1 losses call for the bet b.
LARGE, LARGE_SHARES = np.array([0.125, 0.5, 1.0, 2.0, 4.0, 10.0]), np.array([0.05, 0.2, 0.25, 0.2, 0.15, 0.15])
LARGEST = 0.9  # of the largest bet that a loss of 0 does not ruin, which is 1 / eps

HALVINGS = 30  # of the interval in which a bound is searched


class EProcess:
    """A test of one hypothesis about the risk that is updated loss by loss. Add the same losses again to restore it.

    `graded` says which losses to expect: without it, one of 1 does less harm. The test is valid in both cases.
    """

    def __init__(self, risk: float, hypothesis: Hypothesis, *, graded: bool = True) -> None:
        self.risk, self.hypothesis = risk, hypothesis
        self.count = 0
        self.total = 0.0  # sum of the losses
        self.log_wealth = 0.0
        self.log_peak = 0.0  # the largest wealth so far
        self._stakes, self._logs = place_bets(risk, hypothesis, graded=graded)  # logs of the wealth of each bet

    def add(self, loss: float) -> None:
        """Bet on one more loss. Raises RequestError unless it lies between 0 and 1."""
        if not 0 <= loss <= 1:
            raise RequestError(f"losses must lie between 0 and 1, got {loss!r}")
        self.count += 1
        self.total += loss
        self._logs += np.log1p(self._stakes * (self.risk - loss))
        largest = float(self._logs.max())
        self.log_wealth = largest + math.log(np.exp(self._logs - largest).sum())
        self.log_peak = max(self.log_peak, self.log_wealth)

    def rejects(self, delta: float) -> bool:
        """Return whether the hypothesis is rejected: while it is true this ever happens with probability <= delta."""
        check_share("delta", delta)
        return self.log_peak >= -math.log(delta)


def betting_p_values(losses: Array, risk: float) -> Array:
    """Return p-values [...] of "the risk is above `risk`" from losses [..., n]: 1 / the largest wealth so far.

    They are valid for any n, also if n depends on the losses.
    """
    return np.exp(-_log_peaks(losses, risk, "above"))


def bounds(losses: Array, delta: float, *, graded: bool = True) -> tuple[float, float]:
    """Return a lower and an upper bound of the risk from losses [n], each of which fails with probability <= delta.

    They are valid for any n, also if n depends on the losses: the bounds after more losses are never wider. (If the
    lower one is above the upper one, one of them has failed.) A bound is the last candidate that the test of "at most"
    or "above" it rejects. Every bet wins more, the more extreme the candidate is, so halving finds it.
    """
    check_share("delta", delta)
    values = np.asarray(losses, dtype=float)
    if values.ndim != 1 or not len(values):
        raise RequestError(f"losses must be a list of at least one number, got shape {values.shape}")

    def rejects(risk: float, hypothesis: Hypothesis) -> bool:
        return float(_log_peaks(values, risk, hypothesis, graded=graded)) >= -math.log(delta)

    low = _halve(lambda risk: rejects(risk, "at most"), 0.0, 1.0)
    high = _halve(lambda risk: rejects(risk, "above"), 1.0, 0.0)
    return low, high


def log_wealths(losses: Array, risk: float, hypothesis: Hypothesis, *, graded: bool = True) -> Array:
    """Return the logs of the wealth [..., n] after each of the losses [..., n], as `EProcess` would after adding it."""
    values = check_losses(losses)
    found = np.full(values.shape, -np.inf)
    for stake, share in zip(*place_bets(risk, hypothesis, graded=graded), strict=True):
        np.logaddexp(found, share + np.cumsum(np.log1p(stake * (risk - values)), axis=-1), out=found)
    return found


def zeros_needed(risk: float, delta: float, *, graded: bool = True) -> int:
    """Return how many losses of 0 in a row reject "the risk is above `risk`" at level `delta`."""
    check_share("delta", delta)
    stakes, shares = place_bets(risk, "above", graded=graded)
    gains = np.log1p(stakes * risk)
    goal = -math.log(delta)
    # The largest bet with all of the wealth would need fewer zeros, with its own share alone it would need more.
    few, many = (math.ceil((goal - share) / float(gains[-1])) for share in (0.0, float(shares[-1])))
    while few < many:
        middle = (few + many) // 2
        enough = np.logaddexp.reduce(shares + middle * gains) >= goal
        few, many = (few, middle) if enough else (middle + 1, many)
    return few


def check_losses(losses: Array) -> Array:
    """Return the losses as floats. Raises RequestError unless all of them lie between 0 and 1."""
    values = np.asarray(losses, dtype=float)
    if not ((values >= 0) & (values <= 1)).all():  # also refuses NaN
        raise RequestError("losses must lie between 0 and 1")
    return values


def check_share(name: str, value: float) -> None:
    """Raises RequestError unless `value` lies strictly between 0 and 1: the limits need no data or infinite data."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise RequestError(f"{name} must be a number above 0 and below 1 (1% is 0.01), got {value!r}")


def _log_peaks(losses: Array, risk: float, hypothesis: Hypothesis, *, graded: bool = True) -> Array:
    """Return the log of the largest wealth [...] up to now, which starts at 1."""
    found: Array = log_wealths(losses, risk, hypothesis, graded=graded).max(axis=-1, initial=0.0)
    return found


def place_bets(risk: float, hypothesis: Hypothesis, *, graded: bool = True) -> tuple[Array, Array]:
    """Return stakes [bets] and the logs of their shares; a loss x multiplies a share by 1 + stake (risk - x).

    With a larger `risk` every bet on small losses wins more and every bet on large losses wins less, whatever the
    loss is; `bounds` relies on that.
    """
    check_share("risk", risk)
    one_of("hypothesis", hypothesis, get_args(Hypothesis), RequestError)
    if hypothesis == "above":
        return SMALL / (1 - risk), np.log(SMALL_SHARES if graded else YES_NO_SHARES)
    return -np.minimum(LARGE, LARGEST / risk), np.log(LARGE_SHARES)


def _halve(rejects: Callable[[float], bool], start: float, end: float) -> float:
    """Return the last candidate on the way from `start` to `end` that is rejected; `start` if none is."""
    for _ in range(HALVINGS):
        middle = (start + end) / 2
        start, end = (middle, end) if rejects(middle) else (start, middle)
    return start

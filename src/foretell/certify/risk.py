"""Risk control: Learn then Test with fixed-sequence testing finds the fastest rule whose risk is shown to be small.

Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then Test: Calibrating Predictive Algorithms to Achieve Risk
Control" (2021). A rule's null hypothesis is that its risk is above eps. Rules are tested in an order that is fixed
before the losses are seen, each at the full level delta, and testing stops at the first one that is not rejected. So
the probability that any rejected rule has a risk above eps is at most delta, however the losses of the rules depend on
each other. The losses need not rise along the order; a good order only lets more rules pass.

Losses that are 0 or 1 are tested with the exact binomial, graded ones, anywhere in [0, 1], by betting. The caller says
which (`graded`), not the data: graded losses that all happen to be 0 or 1 are still graded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foretell.certify.betting import Array, betting_p_values, bounds, check_losses, check_share, zeros_needed
from foretell.errors import RequestError
from foretell.evaluation.intervals import scipy_stats

FIRST_LOOK = 0.8  # of delta; every later look gets the same share of what is left


@dataclass(frozen=True, slots=True, eq=False)
class Certified:
    """The result of testing a sequence of rules."""

    index: int | None  # of the fastest certified rule; None: no rule is certified
    risks: Array  # [rules] mean losses
    p_values: Array  # [rules] of the hypothesis "the risk is above eps"
    bound: (
        float  # upper confidence bound of the chosen rule's risk; 0 without a rule, since never stopping loses nothing
    )


def certify(losses: Array, risk: float, confidence: float, graded: bool = False) -> Certified:
    """Find the fastest rule whose risk is at most `risk` with `confidence`. `losses` [rules, n]: safest rule first."""
    check_shares(risk, confidence)
    values = np.asarray(losses, dtype=float)
    if values.ndim != 2 or 0 in values.shape:
        raise RequestError(f"losses must be a table of rules by examples, got shape {values.shape}")
    found = p_values(values, risk, graded=graded)
    passed = int(count_certified(found, confidence))
    bound = upper_bound(values[passed - 1], confidence, graded=graded) if passed else 0.0
    return Certified(passed - 1 if passed else None, values.mean(axis=-1), found, bound)


def p_values(losses: Array, risk: float, *, graded: bool) -> Array:
    """Return valid p-values [...] of "the mean loss is above `risk`", from losses [..., n]."""
    if graded:
        return betting_p_values(losses, risk)
    errors = _check_binary(losses)
    return binomial_p_values(errors.sum(axis=-1), errors.shape[-1], risk)


def binomial_p_values(errors: Array, count: int, risk: float) -> Array:
    """Return the binomial probability of at most `errors` errors among `count` examples at an error rate of `risk`."""
    found: Array = scipy_stats().binom.cdf(errors, count, risk)
    return found


def count_certified(p_values: Array, confidence: float) -> Array:
    """Return how many rules [...] pass before the first one that fails, from p-values [..., rules]."""
    failed = ~(np.asarray(p_values) <= 1 - confidence)
    passed: Array = np.where(failed.any(axis=-1), failed.argmax(axis=-1), failed.shape[-1])
    return passed


def naive(risks: Array, risk: float) -> Array:
    """Return the number of rules [...] up to the last one with a mean loss of at most `risk`, given those [..., rules].

    This is common practice, but it guarantees nothing.
    """
    kept = np.asarray(risks) <= risk
    count = kept.shape[-1]
    last: Array = count - np.argmax(kept[..., ::-1], axis=-1)
    return np.where(kept.any(axis=-1), last, 0)


def upper_bound(losses: Array, confidence: float, *, graded: bool) -> float:
    """Return an upper confidence bound of one rule's risk from its losses [n]: Clopper-Pearson for zeros and ones.

    It is valid only for a rule that was fixed in advance. For a rule that was chosen by its losses, use eps.
    """
    if graded:
        return bounds(losses, 1 - confidence)[1]
    errors = _check_binary(losses)
    test = scipy_stats().binomtest(round(errors.sum()), len(errors), alternative="less")
    return float(test.proportion_ci(confidence, method="exact").high)


def spend(delta: float, look: int) -> float:
    """Return the part of `delta` for one look, counted from 1: 0.8, 0.16, 0.032, ... of it.

    Each look may be wrong with the probability that it is given. The parts are delta * 0.8 * 0.2^(look - 1), a
    geometric series whose sum over any number of looks stays below delta * 0.8 / (1 - 0.2) = delta. So the probability
    that any look is wrong is at most delta, although their number is not fixed in advance, and even if the
    same examples are looked at again. The rules that a look tests must not have been chosen on the examples of that
    look, including those it shares with an earlier one.
    """
    check_share("delta", delta)
    return delta * look_share(look)


def look_share(look: int) -> float:
    """Return the share of delta that one look, counted from 1, may spend."""
    if isinstance(look, bool) or not isinstance(look, int) or look < 1:
        raise RequestError(f"looks are counted from 1, got {look!r}")
    share: float = FIRST_LOOK * (1 - FIRST_LOOK) ** (look - 1)
    return share


def examples_needed(risk: float, confidence: float, graded: bool = False) -> int:
    """Return the fewest examples that can certify a rule without errors.

    For 0/1 losses this is the least n with (1 - eps)^n <= delta. Betting on graded losses needs some percent more.
    """
    check_shares(risk, confidence)
    if graded:
        return zeros_needed(risk, 1 - confidence)
    guess = math.ceil(math.log(1 - confidence) / math.log1p(-risk))  # rounding may be off by one
    near = range(max(1, guess - 1), guess + 1)
    return next((count for count in near if binomial_p_values(np.zeros(()), count, risk) <= 1 - confidence), guess + 1)


def next_useful(count: int, risk: float, confidence: float) -> int:
    """Return the next number of examples above `count` that allows one error more; those in between gain nothing.

    Holds for losses of 0 and 1. Numbers grow with 1 / risk; at 1% and 95%: 299, 473, 628, 773, ...
    """
    check_shares(risk, confidence)
    binomial, delta = scipy_stats().binom, 1 - confidence
    errors = binomial.ppf(delta, count, risk)  # the fewest errors with a p-value of at least delta
    errors += binomial.cdf(errors, count, risk) <= delta
    low, high = count, 2 * max(count, examples_needed(risk, confidence))
    while binomial.cdf(errors, high, risk) > delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial.cdf(errors, middle, risk) > delta else (low, middle)
    return high


def confidence_at(confidence: float, share: float) -> float:
    """Return the confidence that a test at `share` of delta must reach; delta is 1 - `confidence`."""
    return 1 - share * (1 - confidence)


def too_few(count: int, risk: float, confidence: float, share: float = 1.0, graded: bool = False) -> str | None:
    """Return a message if `count` examples are too few to certify a rule at `share` of delta, otherwise None."""
    level = confidence_at(confidence, share)
    least = examples_needed(risk, level, graded)
    if count >= least:
        return None
    alone = examples_needed(risk, confidence_at(confidence, FIRST_LOOK), graded)
    more = "" if graded else f", {next_useful(least, risk, level)} with one"
    shared = f"; families and looks share the error probability, and one family at a first look needs {alone}"
    return (
        f"{count} examples cannot show a risk of at most {100 * risk:.4g}% with confidence {confidence:g}: "
        f"at least {least} are needed without a single error{more}{shared if share < FIRST_LOOK else ''}"
    )


def check_shares(risk: float, confidence: float) -> None:
    """Raises RequestError unless both lie strictly between 0 and 1."""
    check_share("risk", risk)
    check_share("confidence", confidence)


def _check_binary(losses: Array) -> Array:
    values = check_losses(losses)
    if not ((values == 0) | (values == 1)).all():
        raise RequestError(
            "losses between 0 and 1 are graded: say so (graded=True), since the binomial test is for 0 and 1"
        )
    return values

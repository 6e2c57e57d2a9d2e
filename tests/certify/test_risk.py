"""The risk that is certified is kept as often as promised, where the true risk is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from foretell.certify.risk import (
    Array,
    binomial_p_values,
    certify,
    count_certified,
    examples_needed,
    hoeffding_bentkus,
    naive,
    next_useful,
    p_values,
    too_few,
    upper_bound,
)
from foretell.errors import RequestError

REPETITIONS = 1000
RISK, CONFIDENCE = 0.02, 0.95
# Among this number of examples, at most 4 errors (which pass) have a probability of 4.5%, just below delta.
EXAMPLES = 463
# True risks: safe ones, which pass nearly always, and a last one just above eps, which must pass in 5% at most.
TRUE = np.append(np.geomspace(0.0001, 0.001, 5), 1.001 * RISK)
# A procedure that violates in exactly 5% of the cases has more than this in 1000 with a chance of one in a thousand.
LIMIT = int(stats.binom.ppf(0.999, REPETITIONS, 1 - CONFIDENCE))


def mean_losses(kind: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """Mean losses and p-values [repetitions, rules] of simulated calibration sets."""
    if kind == "nested":  # an example that a rule fails, every bolder rule fails too
        hardness = np.sort(rng.random((REPETITIONS, EXAMPLES)), axis=1)
        errors = np.array([np.searchsorted(row, TRUE) for row in hardness])
    elif kind == "independent":
        errors = rng.binomial(EXAMPLES, TRUE, (REPETITIONS, len(TRUE)))
    else:  # a loss is a share: an example that fails loses nearly everything, as much as makes the mean right
        hardness = rng.random((REPETITIONS, EXAMPLES))
        shares = rng.uniform(0.9, 1.0, (REPETITIONS, EXAMPLES))
        totals = np.stack([(shares * (hardness < risk / 0.95)).sum(axis=1) for risk in TRUE], axis=1)
        return totals / EXAMPLES, hoeffding_bentkus(totals, EXAMPLES, RISK)
    return errors / EXAMPLES, binomial_p_values(errors, EXAMPLES, RISK)


def violations(chosen: Array) -> int:
    """Repetitions in which the rule that was chosen, if any, really has a risk above eps."""
    true = np.append(0.0, TRUE)[chosen]  # 0 rules chosen is never to stop, which risks nothing
    return int((true > RISK).sum())


@pytest.mark.parametrize("kind", ["nested", "independent"])
def test_a_certificate_is_kept_as_often_as_it_says_and_hardly_more_often(kind: str) -> None:
    risks, found = mean_losses(kind, np.random.default_rng(7))
    certified, hoped = count_certified(found, CONFIDENCE), naive(risks, RISK)
    assert 25 < violations(certified) <= REPETITIONS * (1 - CONFIDENCE) < LIMIT
    assert violations(count_certified(found, 0.90)) > LIMIT, "at twice the delta the same simulation says so"
    assert violations(hoped) >= 300, "trusting the mean loss fails far more often"
    assert (certified > 0).mean() > 0.95, "and the certificate is not bought by never stopping"


def test_a_certificate_of_shares_is_kept() -> None:
    """The bound is not exact, so that less than delta is used, and a larger delta is seen later."""
    risks, found = mean_losses("shares", np.random.default_rng(7))
    certified, hoped = count_certified(found, CONFIDENCE), naive(risks, RISK)
    assert 0 < violations(certified) <= REPETITIONS * (1 - CONFIDENCE)
    assert violations(count_certified(found, 0.50)) > LIMIT
    assert violations(hoped) >= 300
    assert (certified > 0).mean() > 0.95


def test_the_simulated_p_values_are_those_of_the_library() -> None:
    rng = np.random.default_rng(3)
    losses = (rng.random(EXAMPLES) < TRUE[:, None]).astype(float)
    assert p_values(losses, RISK) == pytest.approx(stats.binom.cdf(losses.sum(axis=1), EXAMPLES, RISK))
    shares = losses * rng.random(EXAMPLES)
    assert p_values(shares, RISK) == pytest.approx(hoeffding_bentkus(shares.sum(axis=1), EXAMPLES, RISK))


def test_the_walk_ends_at_the_first_failure() -> None:
    """Four rules with 0, 5, 40 and 0 errors of 1000: the last one is good, but comes after a failure."""
    losses = np.zeros((4, 1000))
    losses[1, :5] = losses[2, :40] = 1
    choice = certify(losses, RISK, CONFIDENCE)
    assert choice.index == 1
    assert choice.risks.tolist() == [0.0, 0.005, 0.04, 0.0]
    assert choice.p_values[3] < 0.05 < choice.p_values[2]
    assert choice.bound == pytest.approx(stats.beta.ppf(0.95, 6, 995))
    assert naive(choice.risks, RISK) == 4
    assert naive(np.array([0.5, 0.6]), RISK) == 0
    stricter = certify(losses, 0.006, CONFIDENCE)
    assert (stricter.index, certify(losses, 0.006, 0.5).index) == (0, 1)


def test_nothing_certified_is_never_to_stop() -> None:
    choice = certify(np.ones((3, 50)), RISK, CONFIDENCE)
    assert choice.index is None
    assert choice.bound == 0.0


@pytest.mark.parametrize("risk", [0.005, 0.01, 0.05, 0.5])
@pytest.mark.parametrize("confidence", [0.6, 0.9, 0.95, 0.99])
def test_so_many_examples_are_needed_and_no_more(risk: float, confidence: float) -> None:
    least = examples_needed(risk, confidence)
    assert certify(np.zeros((1, least)), risk, confidence).index == 0
    if least > 1:
        assert certify(np.zeros((1, least - 1)), risk, confidence).index is None
    assert too_few(least, risk, confidence) is None
    assert str(least) in (too_few(least - 1, risk, confidence) or "")


def test_the_known_number_for_one_percent() -> None:
    assert examples_needed(0.01, 0.95) == 299
    assert examples_needed(1e-17, 0.95) == pytest.approx(3e17, rel=0.01)  # where 1 - risk is 1


def test_the_next_useful_number_allows_one_error_more() -> None:
    sizes = [0]
    for _ in range(6):
        sizes.append(next_useful(sizes[-1], 0.01, 0.95))
    assert sizes[1:] == [299, 473, 628, 773, 913, 1049]
    assert [next_useful(size, 0.01, 0.95) for size in (298, 300, 472)] == [299, 473, 473], (
        "in between nothing is gained"
    )
    for errors, size in enumerate(sizes[1:]):
        assert (
            binomial_p_values(np.array(errors), size, 0.01)
            <= 0.05
            < binomial_p_values(np.array(errors), size - 1, 0.01)
        )
    assert next_useful(1, 0.5, 0.5) == 3, "one example allows no error at a p-value of exactly delta, three allow one"
    assert next_useful(100, 1e-12, 0.95) == examples_needed(1e-12, 0.95)
    assert too_few(5, 0.01, 0.95) == (
        "5 examples cannot show a risk of at most 1% with confidence 0.95: "
        "at least 299 are needed without a single error, 473 with one"
    )


def test_bounds_hold_the_mean_and_shrink_with_more_examples() -> None:
    few, many = (np.tile([0.0, 0.0, 0.0, 1.0], n) for n in (10, 100))
    assert 0.25 < upper_bound(many, 0.95) < upper_bound(few, 0.95) < 1
    assert upper_bound(many, 0.95) < upper_bound(many, 0.99)
    assert 0.125 < upper_bound(many / 2, 0.95) < upper_bound(many, 0.95)
    assert upper_bound(np.full(5, 0.9), 0.95) == upper_bound(np.ones(5), 0.95) == 1.0
    bound = upper_bound(many / 2, 0.95)
    assert float(p_values(many / 2, bound)) == pytest.approx(0.05)


def test_hoeffding_bentkus_by_hand() -> None:
    """No loss at all in 100 examples at eps = 5%: Hoeffding's (1 - eps)^n, below e times the same."""
    assert float(hoeffding_bentkus(np.array(0.0), 100, 0.05)) == pytest.approx(0.95**100)
    assert float(hoeffding_bentkus(np.array(8.0), 100, 0.05)) == 1.0  # a mean above eps
    total, mean = 2.5, 0.025
    entropy = mean * math.log(mean / 0.05) + (1 - mean) * math.log((1 - mean) / 0.95)
    expected = min(math.exp(-100 * entropy), math.e * stats.binom.cdf(3, 100, 0.05))
    assert float(hoeffding_bentkus(np.array(total), 100, 0.05)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("total", "count", "risk", "smaller"),
    [
        (0.0, 100, 0.05, "hoeffding"),
        (0.5, 100, 0.05, "hoeffding"),
        (4.0, 463, 0.02, "bentkus"),
        (30.0, 1000, 0.05, "bentkus"),
    ],
)
def test_the_smaller_of_both_bounds_is_taken(total: float, count: int, risk: float, smaller: str) -> None:
    mean = total / count
    entropy = (mean * math.log(mean / risk) if mean else 0.0) + (1 - mean) * math.log((1 - mean) / (1 - risk))
    bounds = {
        "hoeffding": math.exp(-count * entropy),
        "bentkus": math.e * stats.binom.cdf(math.ceil(total), count, risk),
    }
    assert min(bounds, key=bounds.__getitem__) == smaller
    assert max(bounds.values()) > 1.1 * bounds[smaller]
    assert float(hoeffding_bentkus(np.array(total), count, risk)) == pytest.approx(bounds[smaller])


@pytest.mark.parametrize("losses", [np.full((1, 3), 1.5), np.full((1, 3), -0.1), np.full((1, 3), np.nan)])
def test_losses_lie_between_0_and_1(losses: Array) -> None:
    with pytest.raises(RequestError, match="between 0 and 1"):
        certify(losses, RISK, CONFIDENCE)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4,)])
def test_a_table_without_rules_or_examples_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="rules by examples"):
        certify(np.zeros(shape), RISK, CONFIDENCE)


@pytest.mark.parametrize(("risk", "confidence", "named"), [(5, 0.95, "risk"), (0, 0.95, "risk"), (0.01, 95, "conf")])
def test_percentages_are_not_shares(risk: float, confidence: float, named: str) -> None:
    with pytest.raises(RequestError, match=f"{named}.*above 0 and below 1"):
        examples_needed(risk, confidence)

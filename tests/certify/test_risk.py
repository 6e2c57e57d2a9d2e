"""The risk that is certified is kept as often as promised, where the true risk is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from foretell.certify.betting import Array, betting_p_values, bounds
from foretell.certify.risk import (
    binomial_p_values,
    certify,
    count_certified,
    examples_needed,
    naive,
    next_useful,
    p_values,
    spend,
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
        losses = np.stack([shares * (hardness < risk / 0.95) for risk in TRUE], axis=1)
        return losses.mean(axis=2), betting_p_values(losses, RISK)
    return errors / EXAMPLES, binomial_p_values(errors, EXAMPLES, RISK)


def violations(chosen: Array) -> int:
    """Repetitions in which the rule that was chosen, if any, really has a risk above eps."""
    true = np.append(0.0, TRUE)[chosen]  # 0 rules chosen is never to stop, which risks nothing
    return int((true > RISK).sum())


def test_a_p_value_of_exactly_delta_passes() -> None:
    found = np.array([[0.0, 0.25, 0.2500001, 0.0], [0.25, 0.25, 0.25, 0.25], [0.3, 0.0, 0.0, 0.0]])
    assert count_certified(found, 0.75).tolist() == [2, 4, 0]


@pytest.mark.parametrize("kind", ["nested", "independent"])
def test_a_certificate_is_kept_as_often_as_it_says_and_hardly_more_often(kind: str) -> None:
    risks, found = mean_losses(kind, np.random.default_rng(7))
    certified, hoped = count_certified(found, CONFIDENCE), naive(risks, RISK)
    assert 25 < violations(certified) <= REPETITIONS * (1 - CONFIDENCE) < LIMIT
    assert violations(count_certified(found, 0.90)) > LIMIT, "at twice the delta the same simulation says so"
    assert violations(hoped) >= 300, "trusting the mean loss fails far more often"
    assert (certified > 0).mean() > 0.95, "and the certificate is not bought by never stopping"


def test_a_certificate_of_shares_is_kept() -> None:
    """Betting does not use all of delta, because the losses end before the wealth could reach 1 / delta."""
    risks, found = mean_losses("shares", np.random.default_rng(7))
    certified, hoped = count_certified(found, CONFIDENCE), naive(risks, RISK)
    assert 0 < violations(certified) <= REPETITIONS * (1 - CONFIDENCE)
    assert violations(count_certified(found, 0.50)) > LIMIT
    assert violations(hoped) >= 300
    assert (certified > 0).mean() > 0.95


def test_the_simulated_p_values_are_those_of_the_library() -> None:
    rng = np.random.default_rng(3)
    losses = (rng.random(EXAMPLES) < TRUE[:, None]).astype(float)
    exact = stats.binom.cdf(losses.sum(axis=1), EXAMPLES, RISK)
    assert p_values(losses, RISK, graded=False) == pytest.approx(exact)
    shares = losses * rng.random(EXAMPLES)
    assert p_values(shares, RISK, graded=True).tolist() == betting_p_values(shares, RISK).tolist()


def test_the_caller_says_whether_losses_are_graded() -> None:
    """Graded losses that happen to be 0 or 1 are tested by betting; others than 0 and 1 have no binomial test."""
    losses = np.zeros((1, 320))
    assert certify(losses, 0.01, CONFIDENCE, graded=True).p_values == pytest.approx(betting_p_values(losses, 0.01))
    assert upper_bound(losses[0], 0.95, graded=True) == bounds(losses[0], 1 - 0.95)[1]
    assert (
        certify(losses, 0.01, CONFIDENCE, graded=True).bound == upper_bound(losses[0], CONFIDENCE, graded=True) <= 0.01
    )
    losses[0, 0] = 0.5
    for refused in (lambda: certify(losses, 0.01, CONFIDENCE), lambda: upper_bound(losses[0], 0.95, graded=False)):
        with pytest.raises(RequestError, match="graded=True"):
            refused()


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
@pytest.mark.parametrize("graded", [False, True])
def test_so_many_examples_are_needed_and_no_more(risk: float, confidence: float, graded: bool) -> None:
    least = examples_needed(risk, confidence, graded)
    assert certify(np.zeros((1, least)), risk, confidence, graded).index == 0
    if least > 1:
        assert certify(np.zeros((1, least - 1)), risk, confidence, graded).index is None
    assert too_few(least, risk, confidence, graded=graded) is None
    assert str(least) in (too_few(least - 1, risk, confidence, graded=graded) or "")


def test_the_known_number_for_one_percent() -> None:
    assert examples_needed(0.01, 0.95) == 299
    assert 299 < examples_needed(0.01, 0.95, graded=True) < 1.1 * 299
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


@pytest.mark.parametrize("graded", [False, True])
def test_bounds_hold_the_mean_and_shrink_with_more_examples(graded: bool) -> None:
    few, many = (np.tile([0.0, 0.0, 0.0, 1.0], n) for n in (10, 100))
    small, large = (upper_bound(one, 0.95, graded=graded) for one in (many, few))
    assert 0.25 < small < large < 1
    assert small < upper_bound(many, 0.99, graded=graded)


def test_the_looks_spend_less_than_delta_together() -> None:
    assert [spend(0.05, look) for look in (1, 2, 3)] == pytest.approx([0.04, 0.008, 0.0016])
    assert sum(spend(0.05, look) for look in range(1, 300)) == pytest.approx(0.05)
    for look in (0, -1, True, 1.0):
        with pytest.raises(RequestError, match="counted from 1"):
            spend(0.05, look)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="delta must be"):
        spend(5, 1)


@pytest.mark.parametrize("losses", [np.full((1, 3), 1.5), np.full((1, 3), -0.1), np.full((1, 3), np.nan)])
@pytest.mark.parametrize("graded", [False, True])
def test_losses_lie_between_0_and_1(losses: Array, graded: bool) -> None:
    with pytest.raises(RequestError, match="must lie between 0 and 1"):
        certify(losses, RISK, CONFIDENCE, graded)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4,)])
def test_a_table_without_rules_or_examples_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="rules by examples"):
        certify(np.zeros(shape), RISK, CONFIDENCE)


@pytest.mark.parametrize(("risk", "confidence", "named"), [(5, 0.95, "risk"), (0, 0.95, "risk"), (0.01, 95, "conf")])
def test_percentages_are_not_shares(risk: float, confidence: float, named: str) -> None:
    with pytest.raises(RequestError, match=f"{named}.*above 0 and below 1"):
        examples_needed(risk, confidence)

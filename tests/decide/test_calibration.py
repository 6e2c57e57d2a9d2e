"""Calibration of typed decisions: temperature, doubt and conformal quantiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from foretell.decide import calibration
from foretell.decide.answers import Floats, soften
from foretell.decide.calibration import (
    MOST_CAUTION,
    MOST_DOUBT,
    Calibration,
    KindCalibration,
    calibration_error,
    find_quantile,
    fit,
    fit_temperature,
)
from foretell.errors import RequestError


def make_answers(count: int, seed: int, labels: int = 4, careless: float = 0.0) -> tuple[list[Floats], list[int]]:
    """Return probabilities and right labels, which are drawn from them; a share of them is any label instead."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(labels, 0.3), size=count)
    drawn = (1 - careless) * probabilities + careless / labels
    return list(probabilities), [int(rng.choice(labels, p=one)) for one in drawn]


def error_of(probabilities: list[Floats], right: list[int]) -> float:
    hits = [bool(p.argmax() == place) for p, place in zip(probabilities, right, strict=True)]
    return calibration_error([float(p.max()) for p in probabilities], hits)


def test_doubt_repairs_answers_that_are_wrong_and_certain() -> None:
    made = fit(*make_answers(1500, 0, careless=0.2), 0.9)
    assert made.doubt == pytest.approx(0.2, abs=0.05)
    assert made.temperature == pytest.approx(1, abs=0.2)
    probabilities, right = make_answers(4000, 1, careless=0.2)
    temperature = fit_temperature(probabilities, right)
    warm = [soften(p, temperature) for p in probabilities]
    calibrated = [made.apply(p) for p in probabilities]
    assert error_of(calibrated, right) < 0.02
    assert min(error_of(warm, right), error_of(probabilities, right)) > 0.08
    for p, q in zip(probabilities, calibrated, strict=True):
        assert q.sum() == pytest.approx(1)
        assert q.min() > 0.99 * made.doubt / 4
        assert (np.diff(q[np.argsort(p)]) >= -1e-15).all()


def test_no_doubt_where_a_temperature_is_enough() -> None:
    doubts = [fit(*make_answers(200, seed), 0.9).doubt for seed in range(4)]
    assert doubts.count(0.0) >= 3
    sharp = [p**2 / (p**2).sum() for p in make_answers(800, 9)[0]]
    made = fit(sharp, make_answers(800, 9)[1], 0.9)
    assert made.doubt == 0
    assert made.temperature == pytest.approx(2, abs=0.3)


def test_doubt_is_bounded() -> None:
    probabilities, right = make_answers(600, 2, careless=0.95)
    assert fit(probabilities, right, 0.9).doubt <= MOST_DOUBT
    with pytest.raises(RequestError, match="doubt must be from 0"):
        KindCalibration(1.0, 0.5, 0.9, 50, doubt=0.6)
    old = {"kinds": {"choice": {"temperature": 1.5, "quantile": 0.1, "coverage": 0.9, "rows": 60}}}
    assert Calibration.read({**old, "template": "", "labels": {}}).kinds["choice"].doubt == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", 0.04), ("temperature", 20.1), ("quantile", 1.1), ("quantile", -0.1), ("coverage", 1.1)),
        *(("rows", 49), ("doubt", -0.1), ("caution", -0.1)),
    ],
)
def test_numbers_out_of_bounds_are_refused(name: str, value: float) -> None:
    good: dict[str, Any] = {"temperature": 1.0, "quantile": 0.5, "coverage": 0.9, "rows": 50}
    KindCalibration(**good)
    with pytest.raises(RequestError, match=f"{name} must be"):
        KindCalibration(**good | {name: value})


def test_a_conformal_set_has_its_limit_and_begins_with_the_best_label() -> None:
    learned = KindCalibration(temperature=1.0, quantile=0.75, coverage=0.9, rows=50)
    assert learned.select(np.array([0.25, 0.625, 0.125])) == [1, 0]


def test_questions_with_different_numbers_of_labels() -> None:
    """Each answer is compared with its own even distribution."""
    two, four = make_answers(300, 3, labels=2, careless=0.3), make_answers(300, 4, labels=8, careless=0.3)
    mixed: list[Floats] = [*two[0], *four[0]]
    made = fit(mixed, [*two[1], *four[1]], 0.9)
    found = minimum([*two[0], *four[0]], [*two[1], *four[1]])
    assert (made.temperature, made.doubt) == pytest.approx(found, abs=0.035)


def minimum(probabilities: list[Floats], right: list[int]) -> tuple[float, float]:
    """Search a grid for temperature and doubt with the smallest loss, answer by answer."""

    def loss(temperature: float, doubt: float) -> float:
        return -sum(
            math.log((1 - doubt) * soften(p, temperature)[place] + doubt / len(p))
            for p, place in zip(probabilities, right, strict=True)
        )

    pairs = [(t, d) for t in np.arange(0.8, 1.2, 0.05) for d in np.arange(0.2, 0.4, 0.04)]
    return min(pairs, key=lambda one: loss(*one))


def test_quantile_of_single_answers() -> None:
    scores = [0.5, 0.1, 0.4, 0.2, 0.3]
    assert find_quantile(scores, 0.5) == 0.3  # the third of five
    assert find_quantile(scores, 5 / 6) == 0.5
    assert find_quantile(scores, 0.84) == 1.0  # five answers cannot show more
    assert find_quantile(scores, 0.0) == 0.0
    assert find_quantile([0.1] * 9 + [0.2], 0.9) == 0.2  # rank 10 of 10: 0.9 of 11 is more than nine
    assert find_quantile([at / 100 for at in range(99)], 0.55) == 0.54  # rank 55, although 100 * 0.55 > 55 in floats


def test_quantile_of_several_answers_per_input() -> None:
    """Every input counts once, however many answers it has."""
    scores, inputs = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0, 0, 0, 0, 1, 2]
    assert find_quantile(scores, 0.25, inputs) == 0.4  # one of four: the first input
    assert find_quantile(scores, 0.3, inputs) == 0.5
    assert find_quantile(scores, 0.76, inputs) == 1.0
    assert find_quantile(scores, 0.6, [5, 4, 3, 2, 1, 0]) == find_quantile(scores, 0.6)


def test_coverage_of_dependent_answers() -> None:
    """Scores of one input are nearly equal: a random answer to another input is covered as promised."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        level = rng.random(61)
        sizes = np.where(level > 0.5, 8, 1)  # hard inputs have more answers
        scores = np.repeat(level, sizes)
        inputs = np.repeat(np.arange(61), sizes)
        bound = find_quantile(scores[inputs < 60].tolist(), 0.8, inputs[inputs < 60].tolist())
        covered.append(level[60] <= bound)
    low, high = stats.binom.interval(0.999, 400, 0.8)
    assert low <= sum(covered) <= high + 8  # at most one input of 61 too many


def test_rows_are_inputs() -> None:
    probabilities, right = make_answers(98, 5)
    with pytest.raises(RequestError, match="at least 50 labelled rows per kind, got 49"):
        fit(probabilities, right, 0.9, [at // 2 for at in range(98)])
    made = fit(*make_answers(100, 5), 0.9, [100 - at // 2 for at in range(100)])
    assert made.rows == 50
    damaged: Any = {"kinds": {"choice": {"temperature": 99}}, "template": "", "labels": {}}
    with pytest.raises(RequestError, match="the calibration is damaged"):
        Calibration.read(damaged)


def test_temperature_and_quantile() -> None:
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.ones(4), size=2000)
    right = [int(rng.choice(4, p=one)) for one in true]
    sharp = [one**2 / (one**2).sum() for one in true]  # as if read at half the temperature
    assert fit_temperature(sharp, right) == pytest.approx(2, abs=0.15)
    made = fit(sharp[:1000], right[:1000], 0.9)
    covered = np.mean([place in made.select(p) for p, place in zip(sharp[1000:], right[1000:], strict=True)])
    assert covered == pytest.approx(0.9, abs=0.035)
    softened = [made.apply(p) for p in sharp]
    errors = [
        calibration_error(
            [float(p.max()) for p in each], [p.argmax() == place for p, place in zip(each, right, strict=True)]
        )
        for each in (sharp, softened)
    ]
    assert errors[1] < 0.03 < errors[0]
    with pytest.raises(RequestError, match="at least 50 labelled rows"):
        fit(sharp[:49], right[:49], 0.9)
    certain = [np.array([1.0, 0.0])] * 60
    assert fit_temperature(certain, [0] * 60) >= 0.05
    assert fit(certain, [0] * 60, 1.0).quantile == 1.0  # more coverage than 60 rows can show


def test_caution_tells_wrong_thinking_from_right() -> None:
    """All answers are certain; right ones are as frequent as the least certain thinking token was likely, squared."""
    rng = np.random.default_rng(0)
    thinking = rng.uniform(0.5, 1, size=900)
    right = np.where(rng.random(900) < thinking**2, 0, rng.integers(1, 10, size=900)).tolist()
    certain = np.full(10, 1e-6)
    certain[0] = 1.0
    made = fit([certain] * 600, right[:600], 0.9, thinking=thinking[:600].tolist())
    assert made.caution == pytest.approx(2, abs=0.5)
    made_without = fit([certain] * 600, right[:600], 0.9)
    assert made_without.caution == 0
    shown = [made.apply(certain, one) for one in thinking[600:]]
    assert error_of(shown, right[600:]) < 0.06
    hits = np.array(right[600:]) == 0
    best = np.array([p[0] for p in shown])
    assert best[hits].mean() > best[~hits].mean() + 0.1
    assert made.apply(certain, None)[0] > max(best)
    with pytest.raises(RequestError, match="caution must be from 0"):
        KindCalibration(1.0, 0.5, 0.9, 50, caution=21.0)


def test_no_caution_where_thinking_says_nothing() -> None:
    probabilities, right = make_answers(400, 6, careless=0.2)
    thinking = np.random.default_rng(1).uniform(0.2, 1, size=400).tolist()
    made = fit(probabilities, right, 0.9, thinking=thinking)
    assert made.caution == 0
    assert made.doubt == pytest.approx(0.2, abs=0.1)


def test_only_a_clear_gain_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains are summed over inputs and compared with their standard error."""
    rows = calibration._Rows.of(*make_answers(60, 0, careless=0.3))
    for gains, clear in (([1.0, -0.9] * 30, False), ([1.0, -0.4] * 30, True)):
        losses = {(0.0, 0.0): np.array(gains), (MOST_DOUBT, 0.0): np.zeros(60), (MOST_DOUBT, MOST_CAUTION): np.ones(60)}
        monkeypatch.setattr(calibration, "_cross_validate", lambda *given, known=losses: known[given[2:]])
        _, doubt, caution = calibration._choose(rows, np.arange(60))
        assert (doubt > 0.1, caution) == (clear, 0)


def test_losses_are_those_of_inputs_that_were_not_fitted_on() -> None:
    """One wrong answer among certain ones teaches doubt, but not about itself."""
    certain = [np.array([1 - 1e-9, 1e-9])] * 60
    rows = calibration._Rows.of(certain, [0] * 59 + [1])
    losses = calibration._cross_validate(rows, np.arange(60), MOST_DOUBT, 0.0)
    known = rows.losses(*calibration._fit(rows, MOST_DOUBT, 0.0))
    assert losses[-1] > known[-1] + 2

"""Calibration from labelled rows: temperature and doubt per kind of question, and conformal sets of labels.

A temperature cannot help with answers that are wrong and certain: their right label gets a probability of nearly 0 at
every temperature that suits the others. So a share of the probability, the doubt, may be spread evenly over all labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretell.decide.answers import Floats, soften
from foretell.errors import RequestError, whole, within
from foretell.extras import require_extra

COLDEST, HOTTEST = 0.05, 20.0
FEWEST = 50  # rows: a temperature from fewer is worse than none
LEAST = 1e-12  # probability of a right label that the model excludes, so that its logarithm is finite
MOST_DOUBT = 0.5
GRID = 13  # temperatures between which the best one is searched for
FOLDS = 5  # to compare calibrations with and without doubt on rows that they were not fitted on


class KindCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was learned for one kind of question."""

    temperature: float
    quantile: float  # a label is in the conformal set if 1 minus its probability is at most this
    coverage: float  # the probability that the set has the right label, for rows like those it was learned from
    rows: int  # inputs; each may have several questions of this kind
    doubt: float = 0.0  # the share of the probability that is spread evenly over all labels

    def __post_init__(self) -> None:
        within("temperature", self.temperature, COLDEST, HOTTEST, RequestError)
        within("quantile", self.quantile, 0.0, 1.0, RequestError)
        within("coverage", self.coverage, 0.0, 1.0, RequestError)
        whole("rows", self.rows, FEWEST, error=RequestError)
        within("doubt", self.doubt, 0.0, MOST_DOUBT, RequestError)

    def apply(self, probabilities: Floats) -> Floats:
        """Return calibrated probabilities. They add up to 1 and keep their order."""
        return (1 - self.doubt) * soften(probabilities, self.temperature) + self.doubt / len(probabilities)

    def select(self, probabilities: Floats) -> list[int]:
        """Return the places of the labels in the conformal set, the most likely first."""
        order = np.argsort(-probabilities, kind="stable")
        return [int(place) for place in order if 1 - probabilities[place] <= self.quantile + LEAST]


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was learned by kind, and what it holds for."""

    kinds: dict[str, KindCalibration]
    template: str  # digest of the template and the questions
    labels: dict[str, list[str]]  # of each question, for people

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Calibration:
        """Return a calibration from the content of a file. Raises RequestError if it is damaged."""
        try:
            return msgspec.convert(value, cls)
        except (msgspec.ValidationError, RequestError) as error:
            raise RequestError(f"the calibration is damaged: {error}") from error


def fit(
    probabilities: Sequence[Floats], right: Sequence[int], coverage: float, inputs: Sequence[int] | None = None
) -> KindCalibration:
    """Learn from answers: the probabilities of each one's labels, and the place of the right one.

    `inputs` is the number of the input that each answer is about (default: another one each). The quantile is
    taken of the probabilities before calibration: temperature and doubt depend on the rows, and the guarantee of a
    conformal set needs scores that do not. Raises RequestError if there are too few inputs.
    """
    groups = np.arange(len(right)) if inputs is None else np.unique(np.asarray(inputs), return_inverse=True)[1]
    rows = int(groups.max(initial=-1)) + 1
    if rows < FEWEST:
        raise RequestError(f"a calibration needs at least {FEWEST} labelled rows per kind, got {rows}")
    within("coverage", coverage, 0.0, 1.0, RequestError)
    quantile = find_quantile(
        [1 - float(p[place]) for p, place in zip(probabilities, right, strict=True)], coverage, groups
    )
    temperature, doubt = fit_doubt(_Rows.of(probabilities, right), groups)
    return KindCalibration(temperature, quantile, coverage, rows, doubt)


def find_quantile(scores: Sequence[float], coverage: float, inputs: Sequence[int] | None = None) -> float:
    """Return the bound below which a score of another input lies with probability `coverage` or more.

    Scores are from 0 to 1. Of n inputs with one score each, it is the ceil((n + 1) coverage)-th smallest score, and 1
    if there are too few. Scores of one input depend on each other, so each of its m scores weighs 1 / m: the bound is
    for an answer that is drawn from another input (Lee, Barber and Willett, "Distribution-free inference with
    hierarchical data", 2023).
    """
    found = np.asarray(scores, dtype=float)
    groups = np.arange(len(found)) if inputs is None else np.asarray(inputs)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(found, kind="stable")
    reached = np.cumsum(1 / sizes[group][order])  # the number of inputs whose scores are below
    wanted = (len(sizes) + 1) * coverage - 1e-9
    place = int(np.searchsorted(reached, wanted))
    bound = found[order[place]] if place < len(found) else 1.0
    return float(min(1.0, max(0.0, bound if wanted > 0 else 0.0)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Answers with the place of the right label, as arrays; shorter ones are padded."""

    logs: Floats  # [n, K] log probabilities; -inf: there is no such label
    right: NDArray[np.int64]  # [n]

    @classmethod
    def of(cls, probabilities: Sequence[Floats], right: Sequence[int]) -> _Rows:
        logs = np.full((len(right), max(map(len, probabilities))), -np.inf)
        for row, p in zip(logs, probabilities, strict=True):
            row[: len(p)] = np.log(np.maximum(p, LEAST))
        return cls(logs, np.asarray(right, dtype=np.int64))

    def select(self, chosen: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.logs[chosen], self.right[chosen])

    def soften(self, temperature: float) -> Floats:
        """Return the probability of each right label at a temperature. [n]"""
        powers = np.exp((self.logs - self.logs.max(axis=1, keepdims=True)) / temperature)
        found: Floats = powers[np.arange(len(powers)), self.right] / powers.sum(axis=1)
        return found

    def even(self) -> Floats:
        """Return the probability of each right label if all labels are equally likely. [n]"""
        found: Floats = 1 / np.isfinite(self.logs).sum(axis=1)
        return found

    def losses(self, temperature: float, doubt: float) -> Floats:
        """Return the negative log probability of each right label after calibration. [n]"""
        found: Floats = -np.log(np.maximum(LEAST, (1 - doubt) * self.soften(temperature) + doubt * self.even()))
        return found


def fit_doubt(rows: _Rows, inputs: NDArray[np.int64]) -> tuple[float, float]:
    """Return temperature and doubt. The doubt is 0 unless it makes rows clearly more likely that it was not fitted on.

    "Clearly" is by more than one standard error of the sum over inputs, in cross-validation.
    """
    gains = np.zeros(len(inputs))
    for fold in range(FOLDS):
        held = inputs % FOLDS == fold
        kept = rows.select(~held)
        plain, doubting = (_fit(kept, most) for most in (0.0, MOST_DOUBT))
        gains[held] = rows.select(held).losses(*plain) - rows.select(held).losses(*doubting)
    per_input = np.bincount(inputs, gains)
    needed = per_input.std() * math.sqrt(len(per_input))
    return _fit(rows, MOST_DOUBT if per_input.sum() > needed else 0.0)


def fit_temperature(probabilities: Sequence[Floats], right: Sequence[int]) -> float:
    """Return the temperature, within bounds, at which the right labels are most likely."""
    return _fit(_Rows.of(probabilities, right), 0.0)[0]


def _fit(rows: _Rows, most_doubt: float) -> tuple[float, float]:
    """Return the temperature and the doubt, up to a limit, at which the right labels are most likely."""
    require_extra("lab")
    from scipy.optimize import minimize_scalar  # noqa: PLC0415  an extra

    even = rows.even()

    def best_doubt(temperature: float) -> tuple[float, float]:
        """Return the doubt that fits a temperature best, and the loss."""
        softened = rows.soften(temperature)

        def loss(doubt: float) -> float:
            return float(-np.log(np.maximum(LEAST, (1 - doubt) * softened + doubt * even)).sum())

        if most_doubt == 0:
            return 0.0, loss(0.0)
        found = minimize_scalar(loss, bounds=(0, most_doubt), method="bounded", options={"xatol": 1e-5})
        return float(found.x), float(found.fun)

    def profile(log_temperature: float) -> float:
        return best_doubt(math.exp(log_temperature))[1]

    grid = np.linspace(math.log(COLDEST), math.log(HOTTEST), GRID)  # with doubt, the loss may have several minima
    place = int(np.argmin([profile(one) for one in grid]))
    around = grid[max(0, place - 1)], grid[min(GRID - 1, place + 1)]
    found = minimize_scalar(profile, bounds=around, method="bounded")
    temperature = float(min(HOTTEST, max(COLDEST, round(math.exp(found.x), 4))))
    return temperature, round(best_doubt(temperature)[0], 6)


def calibration_error(confidences: Sequence[float], correct: Sequence[bool], bins: int = 15) -> float:
    """Return the expected calibration error: the mean distance of confidence and accuracy over equally wide bins."""
    confidence, hits = np.asarray(confidences, dtype=float), np.asarray(correct, dtype=float)
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[place == one].sum() - hits[place == one].sum()) for one in range(bins)]
    return float(sum(gaps) / max(1, len(hits)))

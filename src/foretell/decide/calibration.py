"""Calibration from labelled rows: temperature and doubt per kind of question, and conformal sets of labels.

A temperature cannot help with answers that are wrong and certain: their right label gets a probability of nearly 0 at
every temperature that suits the others. So a share of the probability, the doubt, may be spread evenly over all labels.
After wrong thinking, the model can be certain of a wrong answer although it was not certain of the thinking. So the
doubt may be larger where a thinking token was filled with a low probability.
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
MOST_DOUBT, MOST_CAUTION = 0.5, 20.0
STARTS = ((0.0, 0.02, 0.2), (0.7, 0.1, 2.0))  # log temperature, doubt and caution
FOLDS = 5  # to compare calibrations on rows that they were not fitted on


class KindCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calibration of one kind of question."""

    temperature: float
    quantile: float  # a label is in the conformal set if 1 minus its probability is at most this
    coverage: float  # the probability that the set has the right label, for rows like those it was learned from
    rows: int  # inputs; each may have several questions of this kind
    doubt: float = 0.0  # the share of the probability that is spread evenly over all labels
    caution: float = 0.0  # the power of `Answer.thinking` that is left of the rest; 0: thinking does not count

    def __post_init__(self) -> None:
        within("temperature", self.temperature, COLDEST, HOTTEST, RequestError)
        within("quantile", self.quantile, 0.0, 1.0, RequestError)
        within("coverage", self.coverage, 0.0, 1.0, RequestError)
        whole("rows", self.rows, FEWEST, error=RequestError)
        within("doubt", self.doubt, 0.0, MOST_DOUBT, RequestError)
        within("caution", self.caution, 0.0, MOST_CAUTION, RequestError)

    def apply(self, probabilities: Floats, thinking: float | None = None) -> Floats:
        """Return calibrated probabilities of an answer, which add up to 1 and keep their order."""
        kept = (1 - self.doubt) * max(LEAST, 1.0 if thinking is None else thinking) ** self.caution
        made: Floats = kept * soften(probabilities, self.temperature) + (1 - kept) / len(probabilities)
        return made

    def select(self, probabilities: Floats) -> list[int]:
        """Return the places of the labels in the conformal set, the most likely first."""
        order = np.argsort(-probabilities, kind="stable")
        return [int(place) for place in order if 1 - probabilities[place] <= self.quantile + LEAST]


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calibration of each kind of question, and the template and labels that it is valid for."""

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
    probabilities: Sequence[Floats],
    right: Sequence[int],
    coverage: float,
    inputs: Sequence[int] | None = None,
    thinking: Sequence[float | None] | None = None,
) -> KindCalibration:
    """Learn from answers: the probabilities of each one's labels, and the place of the right one.

    `inputs` is the number of the input that each answer is about (default: another one each), and `thinking` what
    `Answer.thinking` says of it. The quantile is taken of the probabilities before calibration: temperature and doubt
    depend on the rows, and the guarantee of a conformal set needs scores that do not. Raises RequestError if there are
    too few inputs.
    """
    groups = np.arange(len(right)) if inputs is None else np.unique(np.asarray(inputs), return_inverse=True)[1]
    rows = int(groups.max(initial=-1)) + 1
    if rows < FEWEST:
        raise RequestError(f"a calibration needs at least {FEWEST} labelled rows per kind, got {rows}")
    within("coverage", coverage, 0.0, 1.0, RequestError)
    quantile = find_quantile(
        [1 - float(p[place]) for p, place in zip(probabilities, right, strict=True)], coverage, groups
    )
    temperature, doubt, caution = _choose(_Rows.of(probabilities, right, thinking), groups)
    return KindCalibration(temperature, quantile, coverage, rows, doubt, caution)


def find_quantile(
    scores: Sequence[float], coverage: float, inputs: Sequence[int] | NDArray[np.int64] | None = None
) -> float:
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
    even: Floats  # [n] probability of a label if all are equally likely
    thinking: Floats  # [n]

    @classmethod
    def of(
        cls, probabilities: Sequence[Floats], right: Sequence[int], thinking: Sequence[float | None] | None = None
    ) -> _Rows:
        logs = np.full((len(right), max(map(len, probabilities))), -np.inf)
        for row, p in zip(logs, probabilities, strict=True):
            row[: len(p)] = np.log(np.maximum(p, LEAST))
        known = [1.0 if one is None else max(LEAST, one) for one in thinking or [None] * len(right)]
        even = 1 / np.array([len(p) for p in probabilities])
        return cls(logs, np.asarray(right, dtype=np.int64), even, np.array(known))

    def select(self, chosen: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.logs[chosen], self.right[chosen], self.even[chosen], self.thinking[chosen])

    def losses(self, temperature: float, doubt: float, caution: float) -> Floats:
        """Return the negative log probability of each right label after calibration. [n]"""
        powers = np.exp((self.logs - self.logs.max(axis=1, keepdims=True)) / temperature)
        softened = powers[np.arange(len(powers)), self.right] / powers.sum(axis=1)
        kept = (1 - doubt) * self.thinking**caution
        found: Floats = -np.log(np.maximum(LEAST, kept * softened + (1 - kept) * self.even))
        return found


Numbers = tuple[float, float, float]  # temperature, doubt and caution


def _choose(rows: _Rows, inputs: NDArray[np.int64]) -> Numbers:
    """Return temperature, doubt and caution.

    Doubt, and then caution, is 0 unless it makes rows clearly more likely that it was not fitted on: by more than one
    standard error of the sum over inputs, in cross-validation.
    """
    most, best = (0.0, 0.0), _cross_validate(rows, inputs, 0.0, 0.0)
    for candidate in ((MOST_DOUBT, 0.0), (MOST_DOUBT, MOST_CAUTION)):
        losses = _cross_validate(rows, inputs, *candidate)
        gains = np.bincount(inputs, best - losses)
        if gains.sum() > gains.std() * math.sqrt(len(gains)):
            most, best = candidate, losses
    return _fit(rows, *most)


def _cross_validate(rows: _Rows, inputs: NDArray[np.int64], most_doubt: float, most_caution: float) -> Floats:
    """Return the loss of each answer after a calibration that was fitted on other inputs. [n]"""
    losses = np.zeros(len(inputs))
    for fold in range(FOLDS):
        held = inputs % FOLDS == fold
        losses[held] = rows.select(held).losses(*_fit(rows.select(~held), most_doubt, most_caution))
    return losses


def fit_temperature(probabilities: Sequence[Floats], right: Sequence[int]) -> float:
    """Return the temperature, within bounds, at which the right labels are most likely."""
    return _fit(_Rows.of(probabilities, right), 0.0, 0.0)[0]


def _fit(rows: _Rows, most_doubt: float, most_caution: float) -> Numbers:
    """Return the temperature, and doubt and caution up to a limit, at which the right labels are most likely."""
    require_extra("lab")
    from scipy.optimize import minimize  # noqa: PLC0415  an extra

    def expand(numbers: Floats) -> Numbers:
        doubt, caution = (*map(float, numbers[1:]), 0.0, 0.0)[:2]
        return math.exp(numbers[0]), doubt, caution

    limits = ((0.0, most) for most in (most_doubt, most_caution) if most)
    bounds = [(math.log(COLDEST), math.log(HOTTEST)), *limits]
    tried = [
        minimize(lambda numbers: rows.losses(*expand(numbers)).mean(), start[: len(bounds)], bounds=bounds)
        for start in (STARTS if most_doubt else STARTS[:1])
    ]
    temperature, doubt, caution = expand(min(tried, key=lambda one: one.fun).x)
    return min(HOTTEST, max(COLDEST, round(temperature, 4))), round(doubt, 6), round(caution, 4)


def calibration_error(confidences: Sequence[float], correct: Sequence[bool], bins: int = 15) -> float:
    """Return the expected calibration error: the mean distance of confidence and accuracy over equally wide bins."""
    confidence, hits = np.asarray(confidences, dtype=float), np.asarray(correct, dtype=float)
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[place == one].sum() - hits[place == one].sum()) for one in range(bins)]
    return float(sum(gaps) / max(1, len(hits)))

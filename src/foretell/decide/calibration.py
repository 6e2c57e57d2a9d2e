"""Calibration from labelled rows: a temperature per kind of question, and conformal sets of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from foretell.decide.answers import Floats, soften
from foretell.errors import RequestError, whole, within
from foretell.extras import require_extra

COLDEST, HOTTEST = 0.05, 20.0
FEWEST = 50  # rows: a temperature from fewer is worse than none
LEAST = 1e-12  # probability of a right label that the model excludes, so that its logarithm is finite


class KindCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was learned for one kind of question."""

    temperature: float
    quantile: float  # a label is in the conformal set if 1 minus its probability is at most this
    coverage: float  # the probability that the set has the right label, for rows like those it was learned from
    rows: int

    def __post_init__(self) -> None:
        within("temperature", self.temperature, COLDEST, HOTTEST, RequestError)
        within("quantile", self.quantile, 0.0, 1.0, RequestError)
        within("coverage", self.coverage, 0.0, 1.0, RequestError)
        whole("rows", self.rows, FEWEST, error=RequestError)

    def soften(self, probabilities: Floats) -> Floats:
        """Return probabilities after temperature scaling."""
        return soften(probabilities, self.temperature)

    def select(self, probabilities: Floats) -> list[int]:
        """Return the places of the labels in the conformal set, the most likely first."""
        order = np.argsort(-probabilities, kind="stable")
        return [int(place) for place in order if 1 - probabilities[place] <= self.quantile + LEAST]


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Temperatures and quantiles by kind, and what they hold for."""

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


def fit(probabilities: Sequence[Floats], right: Sequence[int], coverage: float) -> KindCalibration:
    """Learn from rows: the probabilities of each row's labels, and the place of the right one.

    The quantile is taken of the probabilities before temperature scaling: the temperature depends on the rows, and the
    guarantee of a conformal set needs scores that do not. Raises RequestError if there are too few rows.
    """
    if len(right) < FEWEST:
        raise RequestError(f"a calibration needs at least {FEWEST} labelled rows per kind, got {len(right)}")
    within("coverage", coverage, 0.0, 1.0, RequestError)
    quantile = find_quantile([1 - float(p[place]) for p, place in zip(probabilities, right, strict=True)], coverage)
    return KindCalibration(fit_temperature(probabilities, right), quantile, coverage, len(right))


def find_quantile(scores: Sequence[float], coverage: float) -> float:
    """Return the bound below which another score of the same kind lies with probability `coverage` or more.

    It is the ceil((n + 1) coverage)-th smallest of n scores from 0 to 1, and 1 if there are too few of them.
    """
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    found = sorted(scores)[rank - 1] if 1 <= rank <= len(scores) else float(rank > 0)
    return min(1.0, max(0.0, found))


def fit_temperature(probabilities: Sequence[Floats], right: Sequence[int]) -> float:
    """Return the temperature, within bounds, at which the right labels are most likely."""
    require_extra("lab")
    from scipy.optimize import minimize_scalar  # noqa: PLC0415  an extra

    def loss(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        softened = (soften(np.maximum(p, LEAST), temperature) for p in probabilities)
        return -sum(math.log(max(LEAST, p[place])) for p, place in zip(softened, right, strict=True))

    found = minimize_scalar(loss, bounds=(math.log(COLDEST), math.log(HOTTEST)), method="bounded")
    return float(min(HOTTEST, max(COLDEST, round(math.exp(found.x), 4))))


def calibration_error(confidences: Sequence[float], correct: Sequence[bool], bins: int = 15) -> float:
    """Return the expected calibration error: the mean distance of confidence and accuracy over equally wide bins."""
    confidence, hits = np.asarray(confidences, dtype=float), np.asarray(correct, dtype=float)
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[place == one].sum() - hits[place == one].sum()) for one in range(bins)]
    return float(sum(gaps) / max(1, len(hits)))

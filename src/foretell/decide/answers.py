"""Answers to questions: values, probabilities and the field's formulas for confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What all answers have. Probabilities are those at the step at which the answer was settled."""

    name: str
    label_mass: float | None  # probability of all labels together before they were normalised; None: not computed
    gap: float  # best minus second best logit when the slot was filled, of its least certain position
    steps: int  # of the decoding in which the question was answered
    forwards: int  # forward passes, with those of second readings
    thinking: float | None = None  # probability of the least certain thinking token when it was filled; None: none was
    reads: int = 1  # how many readings were averaged
    abstained: bool = False  # the model was not sure enough, so there is no value
    exhausted: bool = False  # the remaining steps were spent, because the first answer was not sure enough
    conformal: tuple[Any, ...] | None = None  # labels that contain the right one with the calibrated coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateAnswer(Answer):
    value: bool | None
    probability: float  # of yes
    calibrated: float | None = None  # the same after calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAnswer(Answer):
    """An answer that is one of several labels."""

    confidence: float  # (n p - 1) / (n - 1), for the largest probability p of n labels
    probabilities: Mapping[Any, float]
    calibrated: Mapping[Any, float] | None = None  # the same after calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAnswer(LabelAnswer):
    value: str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerAnswer(LabelAnswer):
    value: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreAnswer(LabelAnswer):
    """`confidence` is 1 - E|i - best| / D, where D is the mean distance of the levels from the middle."""

    value: float | None  # the mean level, counted from 0
    level: str | None  # the most likely one


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAnswer(Answer):
    value: Any  # a text; of a field of a JSON schema, any JSON value
    probability: float  # among all allowed texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAnswer(Answer):
    value: dict[str, Any] | None
    fields: Mapping[str, AnyAnswer]  # by path


AnyAnswer = PredicateAnswer | ChoiceAnswer | IntegerAnswer | ScoreAnswer | TextAnswer | ObjectAnswer


@dataclass(frozen=True, slots=True)
class Decision:
    """The answers to all questions about one input."""

    answers: Mapping[str, AnyAnswer]
    steps: int  # of all decodings
    forwards: int
    prompt_tokens: int
    seconds: float
    notes: tuple[str, ...] = field(default=())

    @property
    def value(self) -> Any:
        """The value of the only answer, or a dict of all values."""
        values = {name: answer.value for name, answer in self.answers.items()}
        return next(iter(values.values())) if len(values) == 1 else values

    @property
    def answer(self) -> AnyAnswer:
        """The first answer."""
        return next(iter(self.answers.values()))

    def to_json(self) -> dict[str, Any]:
        """Return everything as values that `json` can write. Probabilities are lists: not all labels are texts."""
        made: dict[str, Any] = asdict(self)
        made["answers"] = {name: _answer_json(answer) for name, answer in self.answers.items()}
        return made


def _answer_json(answer: AnyAnswer) -> dict[str, Any]:
    made: dict[str, Any] = {one.name: getattr(answer, one.name) for one in fields(answer)}
    for name in ("probabilities", "calibrated"):
        if isinstance(made.get(name), Mapping):
            made[name] = [{"value": value, "probability": round(p, 6)} for value, p in made[name].items()]
    if isinstance(answer, ObjectAnswer):
        made["fields"] = {name: _answer_json(one) for name, one in answer.fields.items()}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in made.items()}


def choice_confidence(probabilities: Floats) -> float:
    """Return how far the largest of n probabilities is above chance, from 0 to 1."""
    count = len(probabilities)
    return float(np.clip((count * probabilities.max() - 1) / (count - 1), 0, 1)) if count > 1 else 1.0


def score_confidence(probabilities: Floats) -> float:
    """Return 1 minus the mean distance from the most likely level, relative to that of evenly spread levels."""
    levels = np.arange(len(probabilities))
    distance = float((probabilities * np.abs(levels - probabilities.argmax())).sum())
    return float(np.clip(1 - distance / np.abs(levels - (len(levels) - 1) / 2).mean(), 0, 1))


def soften(probabilities: Floats, temperature: float) -> Floats:
    """Return p ** (1 / temperature), normalised."""
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities) / temperature
    powers: Floats = np.exp(logs - logs.max())
    made: Floats = powers / powers.sum()
    return made

"""From what a slot's readings say to typed answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foretell.decide.answers import (
    AnyAnswer,
    ChoiceAnswer,
    Floats,
    IntegerAnswer,
    PredicateAnswer,
    ScoreAnswer,
    choice_confidence,
    score_confidence,
)
from foretell.decide.labels import Labels
from foretell.decide.questions import Choice, Predicate, Question, Score
from foretell.decide.reading import SlotReader
from foretell.engine.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Reading:
    """The probabilities of a question's labels, from one decoding or several."""

    labels: Labels
    probabilities: Floats  # one per label
    mass: float | None
    gap: float
    outcomes: tuple[Outcome, ...]
    reads: int = 1
    exhausted: bool = False

    @classmethod
    def of(cls, labels: Labels, slot: SlotReader, outcome: Outcome) -> Reading:
        """Return what the finished decoding of a slot says."""
        probabilities = labels.probabilities(labels.scores(slot.logits))
        mass = None
        if slot.normalisers is not None:
            mass = float(np.exp(labels.scores(slot.log_probabilities)).sum())
        return cls(labels, probabilities, mass, slot.gap, (outcome,))

    @property
    def best(self) -> int:
        """The place of the most likely label."""
        return int(self.probabilities.argmax())

    @property
    def value(self) -> Any:
        return self.labels.values[self.best]

    def average(self, other: Reading) -> Reading:
        """Return the mean of two readings, of which the other one may have its labels in another order."""
        places = [other.labels.values.index(value) for value in self.labels.values]
        return replace(
            self,
            probabilities=(self.probabilities + other.probabilities[places]) / 2,
            mass=None if self.mass is None or other.mass is None else (self.mass + other.mass) / 2,
            gap=min(self.gap, other.gap),
            outcomes=self.outcomes + other.outcomes,
            reads=self.reads + other.reads,
        )

    def continued(self, later: Reading) -> Reading:
        """Return a later reading in place of this one."""
        return replace(later, outcomes=self.outcomes + later.outcomes, reads=self.reads, exhausted=True)


def text_of_value(labels: Labels, place: int) -> str:
    """Return the first spelling of a label."""
    return labels.texts[labels.owner.index(place)]


def finish_answer(name: str, question: Question, reading: Reading, on_unsure: str, sure: float) -> AnyAnswer:
    """Return the typed answer to a question."""
    p, values = reading.probabilities, reading.labels.values
    abstained = on_unsure == "abstain" and bool(p.max() < sure)
    shared: dict[str, Any] = {
        "name": name,
        "label_mass": reading.mass,
        "gap": reading.gap,
        "steps": sum(one.steps for one in reading.outcomes),
        "forwards": sum(one.forwards for one in reading.outcomes),
        "reads": reading.reads,
        "abstained": abstained,
        "exhausted": reading.exhausted,
    }
    value = None if abstained else reading.value
    if isinstance(question, Predicate):
        return PredicateAnswer(value=value, probability=float(p[values.index(True)]), **shared)
    if isinstance(question, Score):
        named = dict(zip(question.levels, p.tolist(), strict=True))
        mean = float((p * np.arange(len(p))).sum())
        level = None if value is None else question.levels[value]
        confidence = score_confidence(p)
        return ScoreAnswer(
            value=None if abstained else mean, level=level, confidence=confidence, probabilities=named, **shared
        )
    named = dict(zip(values, p.tolist(), strict=True))
    kind = ChoiceAnswer if isinstance(question, Choice) else IntegerAnswer
    return kind(value=value, confidence=choice_confidence(p), probabilities=named, **shared)

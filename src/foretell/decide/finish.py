"""Turn the readings of slots into typed answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foretell.decide.answers import (
    AnyAnswer,
    ChoiceAnswer,
    Floats,
    IntegerAnswer,
    ObjectAnswer,
    PredicateAnswer,
    ScoreAnswer,
    TextAnswer,
    choice_confidence,
    score_confidence,
)
from foretell.decide.calibration import KindCalibration
from foretell.decide.canvas import Asked, Spec
from foretell.decide.labels import Labels
from foretell.decide.objects import Leaf, Object
from foretell.decide.questions import Choice, OneSlot, Predicate, Score
from foretell.decide.reading import SlotReader
from foretell.engine.codec import Codec
from foretell.engine.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Reading:
    """What one slot holds, according to one decoding or several."""

    spec: Spec
    text: str | None  # of a grammar's slot
    probabilities: Floats  # one per label; of a grammar, that of the text
    mass: float | None
    gap: float
    outcomes: tuple[Outcome, ...]
    thinking: float | None = None  # probability of the least certain thinking token when it was filled
    reads: int = 1
    exhausted: bool = False

    @classmethod
    def of(cls, spec: Spec, slot: SlotReader, outcome: Outcome, codec: Codec, thinking: float | None = None) -> Reading:
        """Return the reading of a slot after its decoding."""
        mass = None
        if isinstance(spec, Labels):
            probabilities = spec.probabilities(spec.scores(slot.logits))
            if slot.normalisers is not None:
                mass = float(np.exp(spec.scores(slot.log_probabilities)).sum())
            return cls(spec, None, probabilities, mass, slot.gap, (outcome,), thinking)
        tokens = outcome.tokens[slot.slot.offset : slot.slot.end]
        if slot.normalisers is not None:
            mass = math.exp(spec.automaton.log_sum(slot.log_probabilities))
        share = np.array([math.exp(spec.log_probability(tokens, slot.logits))])
        return cls(spec, spec.decode(tokens, codec), share, mass, slot.gap, (outcome,), thinking)

    @property
    def best(self) -> int:
        """The place of the most likely label."""
        return int(self.probabilities.argmax())

    @property
    def value(self) -> Any:
        return self.spec.values[self.best] if isinstance(self.spec, Labels) else self.text

    def average(self, other: Reading) -> Reading:
        """Return the mean of two readings of the same labels."""
        return replace(
            self,
            probabilities=(self.probabilities + other.probabilities) / 2,
            mass=None if self.mass is None or other.mass is None else (self.mass + other.mass) / 2,
            gap=min(self.gap, other.gap),
            thinking=min((one for one in (self.thinking, other.thinking) if one is not None), default=None),
            outcomes=self.outcomes + other.outcomes,
            reads=self.reads + other.reads,
        )

    def continued(self, later: Reading) -> Reading:
        """Return a later reading in place of this one."""
        return replace(later, outcomes=self.outcomes + later.outcomes, reads=self.reads, exhausted=True)


def written(name: str, question: Asked, readings: Mapping[str, Reading]) -> str:
    """Return an answer as the text that is pinned for the questions that depend on it."""
    if isinstance(question, Object):
        return json.dumps(value_of(name, question, readings), ensure_ascii=False)
    reading = readings[name]
    if isinstance(reading.spec, Labels):
        return reading.spec.texts[reading.spec.owner.index(reading.best)]
    return reading.text or ""


def value_of(name: str, question: Asked, readings: Mapping[str, Reading]) -> Any:
    """Return the value of a question; the fields of an object together."""
    if not isinstance(question, Object):
        return readings[name].value
    leaves = question.leaves(name)
    return question.assemble(name, {path: _leaf_value(leaf, readings[path]) for path, leaf in leaves.items()})


def _leaf_value(leaf: Leaf, reading: Reading) -> Any:
    return reading.value if leaf.values or leaf.quoted else json.loads(reading.value)


def finish_question(
    name: str, question: Asked, readings: Mapping[str, Reading], unsure: set[str], kinds: Mapping[str, KindCalibration]
) -> AnyAnswer:
    """Return the typed answer to a question. Names in `unsure` abstain; `kinds` are calibrations by kind."""
    if not isinstance(question, Object):
        return finish_answer(name, question, readings[name], abstains=name in unsure, learned=kinds.get(question.kind))
    leaves = question.leaves(name)
    fields = {
        path: finish_answer(path, leaf, readings[path], abstains=path in unsure, learned=None)
        for path, leaf in leaves.items()
    }
    abstained = not unsure.isdisjoint(leaves)
    masses = [one.label_mass for one in fields.values() if one.label_mass is not None]
    return ObjectAnswer(
        name=name,
        value=None if abstained else value_of(name, question, readings),
        fields=fields,
        label_mass=math.prod(masses) if len(masses) == len(fields) else None,
        gap=min(one.gap for one in fields.values()),
        steps=max(one.steps for one in fields.values()),
        forwards=max(one.forwards for one in fields.values()),
        thinking=next(iter(fields.values())).thinking,  # of the canvas that all fields share
        abstained=abstained,
    )


def finish_answer(
    name: str, question: OneSlot | Leaf, reading: Reading, *, abstains: bool, learned: KindCalibration | None
) -> AnyAnswer:
    """Return the typed answer to a question with one slot."""
    p, spec = reading.probabilities, reading.spec
    shared: dict[str, Any] = {
        "name": name,
        "label_mass": reading.mass,
        "gap": reading.gap,
        "steps": sum(one.steps for one in reading.outcomes),
        "forwards": sum(one.forwards for one in reading.outcomes),
        "thinking": reading.thinking,
        "reads": reading.reads,
        "abstained": abstains,
        "exhausted": reading.exhausted,
    }
    if isinstance(question, Leaf):
        if question.question is None:
            value = None if abstains else _leaf_value(question, reading)
            if not isinstance(spec, Labels):
                return TextAnswer(value=value, probability=float(p[0]), **shared)
            named = dict(zip(spec.texts, p.tolist(), strict=True))
            return ChoiceAnswer(value=value, confidence=choice_confidence(p), probabilities=named, **shared)
        question = question.question
    value = None if abstains else reading.value
    if not isinstance(spec, Labels):
        return TextAnswer(value=value, probability=float(p[0]), **shared)
    softer = None if learned is None else learned.apply(p, reading.thinking)
    if isinstance(question, Predicate):
        chosen = None if learned is None else tuple(spec.values[place] for place in learned.select(p))
        calibrated = None if softer is None else float(softer[0])
        return PredicateAnswer(value=value, probability=float(p[0]), calibrated=calibrated, conformal=chosen, **shared)
    labels = question.levels if isinstance(question, Score) else spec.values
    more: dict[str, Any] = {"probabilities": dict(zip(labels, p.tolist(), strict=True))}
    if learned is not None and softer is not None:
        more["calibrated"] = dict(zip(labels, softer.tolist(), strict=True))
        more["conformal"] = tuple(labels[place] for place in learned.select(p))
    if isinstance(question, Score):
        mean = None if abstains else float((p * np.arange(len(p))).sum())
        level = None if abstains else labels[reading.best]
        return ScoreAnswer(value=mean, level=level, confidence=score_confidence(p), **more, **shared)
    kind = ChoiceAnswer if isinstance(question, Choice) else IntegerAnswer
    return kind(value=value, confidence=choice_confidence(p), **more, **shared)

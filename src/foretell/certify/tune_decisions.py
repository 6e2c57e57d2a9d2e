"""Calibrate typed decisions with the tuned recipe: probabilities and conformal sets per kind of question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from foretell.decide.answers import AnyAnswer, Floats, LabelAnswer, PredicateAnswer
from foretell.decide.calibration import FEWEST, Calibration, fit
from foretell.decide.decide import decide_iter
from foretell.decide.plan import DecisionPlan
from foretell.decide.prompts import DecisionPrompt, digest
from foretell.engine.engine import Engine
from foretell.errors import ForetellError, RequestError, show
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.decisions import RIGHT
from foretell.recipes.recipe import Recipe

COVERAGE = 0.95


class _Learned(NamedTuple):
    """What one answer teaches."""

    probabilities: Floats
    right: int  # place of the right label
    place: int  # of the input
    thinking: float | None


def labelled(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with right answers. Raises RequestError if there are some, but too few to learn from."""
    found = [one for one in examples if one.data.get(RIGHT)]
    if found and len(found) < FEWEST:
        raise RequestError(
            f"{len(found)} rows have right answers, and a calibration needs at least {FEWEST}; remove the answers to "
            "tune without them"
        )
    return found


def calibrate(
    engine: Engine, examples: Sequence[Example], recipe: Recipe, coverage: float, batch_size: int
) -> Calibration | None:
    """Decide about all labelled examples with a recipe, and learn from them; None if there are none."""
    rows = labelled(examples)
    if not rows:
        return None
    first: Any = rows[0].prompt
    assert isinstance(first, DecisionPrompt), "the examples are decisions"
    questions, template, _ = first.prepare(engine.codec)
    plan = DecisionPlan.prepare(engine, questions, recipe=recipe, template=template, orders=1)
    inputs: list[Any] = [getattr(one.prompt, "text", None) for one in rows]
    learned: dict[str, list[_Learned]] = {}  # by kind
    for place, decision in decide_iter(engine, inputs, plan, batch_size):
        if isinstance(decision, ForetellError):
            raise decision
        for name, right in rows[place].data[RIGHT].items():
            labels = label_probabilities(decision.answers[name])
            if right not in labels:
                where = rows[place].data["where"]
                raise RequestError(f"{where}: {show(right)} is not a label of {name}, which has {show(list(labels))}")
            row = _Learned(
                np.array(list(labels.values())), list(labels).index(right), place, decision.answers[name].thinking
            )
            learned.setdefault(questions[name].kind, []).append(row)
    kinds = {}
    for kind, found in learned.items():
        probabilities, right_places, places, thinking = zip(*found, strict=True)
        kinds[kind] = fit(probabilities, right_places, coverage, places, thinking)
    return Calibration(kinds, digest(questions, plan.template, plan.think), plan.labels)


def label_probabilities(answer: AnyAnswer) -> dict[Any, float]:
    """Return the probabilities of an answer's labels. Raises RequestError if it has none."""
    if isinstance(answer, PredicateAnswer):
        return {True: answer.probability, False: 1 - answer.probability}
    if isinstance(answer, LabelAnswer):
        return dict(answer.probabilities)
    raise RequestError(f"{answer.name} is a text or an object, which has no labels to calibrate; leave out its answers")

"""Readings and the answers that are made of them, compared with numbers by hand."""

from __future__ import annotations

import json
import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foretell.decide.answers import Decision, score_confidence
from foretell.decide.calibration import KindCalibration
from foretell.decide.finish import Reading, finish_answer, finish_question
from foretell.decide.grammar import find_grammar
from foretell.decide.labels import find_labels
from foretell.decide.objects import Object
from foretell.decide.questions import Choice, Integer, Predicate, Score
from foretell.decide.reading import SlotReader
from foretell.loop.slots import Slot
from tests.decide.models import make_codec

SPEC = find_labels([("a", ("A",)), ("b", ("B",))], None, make_codec())


def read(*probabilities: float, mass: float | None = None, gap: float = 1.0, **more: Any) -> Reading:
    """Return a reading of one decoding, with three steps and four passes."""
    outcome: Any = SimpleNamespace(steps=3, forwards=4)
    return Reading(more.pop("spec", SPEC), None, np.array(probabilities), mass, gap, (outcome,), **more)


def test_the_mean_of_two_readings() -> None:
    first, second = read(0.6, 0.4, mass=0.9, gap=2.0, thinking=0.5), read(0.2, 0.8, mass=0.5, gap=1.5, thinking=0.7)
    mean = first.average(second)
    assert mean.probabilities.tolist() == pytest.approx([0.4, 0.6])
    assert (mean.mass, mean.gap, mean.thinking, mean.reads) == (0.7, 1.5, 0.5, 2)
    assert second.average(first).thinking == 0.5
    assert first.average(read(0.2, 0.8, mass=0.5)).thinking == 0.5
    assert read(0.2, 0.8).average(read(0.2, 0.8)).thinking is None
    assert first.average(read(0.2, 0.8)).mass is None
    answer = finish_answer("q", Choice("", ["a", "b"]), mean, abstains=False, learned=None)
    assert (answer.value, answer.steps, answer.forwards, answer.reads) == ("b", 6, 8, 2)


def test_a_later_reading_replaces_an_earlier_one() -> None:
    """But the work of both is counted, and so are the earlier readings."""
    later = read(0.5, 0.5).average(read(0.7, 0.3)).continued(read(0.1, 0.9))
    assert (later.best, later.reads, later.exhausted, len(later.outcomes)) == (1, 2, True, 3)


@pytest.mark.parametrize(
    ("question", "labels"),
    [(Choice("", ["a", "b"]), ("a", "b")), (Predicate(), (True, False)), (Score("", ["a", "b"]), ("a", "b"))],
)
def test_conformal_sets_are_of_probabilities_before_calibration(question: Any, labels: tuple[Any, ...]) -> None:
    """A set that was taken after calibration would have both labels: 0.9 is softened to 0.53."""
    learned = KindCalibration(temperature=20.0, quantile=0.6, coverage=0.9, rows=50)
    values = zip(labels if isinstance(question, Predicate) else "ab", ("A", "B"), strict=True)
    spec = find_labels([(value, (text,)) for value, text in values], None, make_codec())
    answer: Any = finish_answer("q", question, read(0.9, 0.1, spec=spec), abstains=False, learned=learned)
    assert answer.conformal == labels[:1]
    soft = 1 / (1 + (1 / 9) ** (1 / 20))
    if isinstance(question, Predicate):
        assert answer.calibrated == pytest.approx(soft)
    else:
        assert answer.calibrated == pytest.approx(dict(zip(labels, (soft, 1 - soft), strict=True)))


def test_a_score_is_compared_with_evenly_spread_levels() -> None:
    """The mean distance from the middle of three levels is 2/3, and of four levels it is 1."""
    assert score_confidence(np.array([0.8, 0.1, 0.1])) == pytest.approx(1 - 0.3 / (2 / 3))
    assert score_confidence(np.array([0.9, 0.1, 0, 0])) == pytest.approx(0.9)
    assert score_confidence(np.full(3, 1 / 3)) == 0.0


def test_the_probability_of_a_text_is_its_share_of_all_that_are_allowed() -> None:
    """And their mass is a part of the whole vocabulary, here of exp(0.5) times the allowed tokens."""
    codec = make_codec()
    grammar = find_grammar("(c|d)(c|dd)", 3, codec)
    reader = SlotReader(Slot(0, grammar.length, grammar.automaton), mass=True)
    reader.logits = torch.randn(reader.logits.shape, generator=torch.Generator().manual_seed(0))
    reader.normalisers = reader.logits.logsumexp(dim=1) + 0.5
    tokens = grammar.automaton.tokens.tolist()
    weights = {
        one: math.exp(sum(float(reader.logits[at, tokens.index(token)]) for at, token in enumerate(one)))
        for one in product(tokens, repeat=grammar.length)
        if grammar.automaton.sequence(one) is not None
    }
    assert len(weights) == 4
    outcome: Any = SimpleNamespace(tokens=next(iter(weights)))
    reading = Reading.of(grammar, reader, outcome, codec)
    assert reading.text == codec.decode(outcome.tokens)
    assert float(reading.probabilities[0]) == pytest.approx(weights[outcome.tokens] / sum(weights.values()))
    assert reading.mass == pytest.approx(sum(weights.values()) / math.exp(float(reader.normalisers.sum())))


def test_an_object_sums_up_its_fields() -> None:
    asked = Object({"x": Integer("", 1), "inner": {"y": Integer("", 1)}})
    digits = find_labels([(0, ("A",)), (1, ("B",))], None, make_codec())
    readings = {
        "o.x": read(0.6, 0.4, mass=0.5, gap=2.0, spec=digits),
        "o.inner.y": read(0.3, 0.7, mass=0.8, gap=3.0, spec=digits),
    }
    answer: Any = finish_question("o", asked, readings, set(), {})
    assert answer.value == {"x": 0, "inner": {"y": 1}}
    assert (answer.label_mass, answer.gap, answer.steps, answer.forwards) == (pytest.approx(0.4), 2.0, 3, 4)
    unsure: Any = finish_question("o", asked, readings, {"o.x"}, {})
    assert (unsure.abstained, unsure.value) == (True, None)
    assert (unsure.fields["o.x"].abstained, unsure.fields["o.inner.y"].abstained) == (True, False)
    incomplete: Any = finish_question("o", asked, readings | {"o.x": read(0.6, 0.4, spec=digits)}, set(), {})
    assert incomplete.label_mass is None
    written = json.loads(json.dumps(Decision({"o": answer}, 3, 4, 5, 0.0).to_json()))
    assert written["answers"]["o"]["fields"]["o.inner.y"]["value"] == 1
    assert math.isclose(written["answers"]["o"]["label_mass"], 0.4)

"""Typed decisions: kinds, probabilities, second readings, stages, and the rounds that a server drives."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import foretell
from foretell.decide.answers import ChoiceAnswer, ObjectAnswer, PredicateAnswer, ScoreAnswer, TextAnswer
from foretell.decide.calibration import Calibration
from foretell.decide.canvas import list_choices
from foretell.decide.decide import decide_iter
from foretell.decide.finish import Reading
from foretell.decide.grammar import find_grammar
from foretell.decide.labels import Labels, encode_after, find_labels
from foretell.decide.objects import Object
from foretell.decide.plan import Ask, DecisionPlan
from foretell.decide.prompts import digest
from foretell.decide.questions import Choice, Integer, Predicate, Score, Text, order_stages
from foretell.engine.engine import Engine, load
from foretell.engine.folder import DecisionTemplate
from foretell.engine.outcome import Outcome
from foretell.engine.request import Request, derive_seed, lay_out
from foretell.errors import ModelError, RequestError
from foretell.loop.protocols import Inputs
from foretell.policies.stop.never import Never
from foretell.policies.transfer.quota import Quota
from tests.decide.models import make_codec, make_engine

INPUT = "Tom has 3 boxes with 4 apples each. He eats 5."
ASK = "How many apples are left?"
RANGES = ["0 to 19", "20 to 34", "35 to 60", "61 to 99"]
LEFT_TO_RIGHT = "full block_length=1"
PLAIN = DecisionTemplate(prompt="{input}", scaffold="= {slot}", think=3, orders=1)


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return load("tiny")


@pytest.fixture(scope="module")
def random() -> Engine:
    return make_engine(0)


def decode(engine: Engine, ask: Ask) -> Outcome:
    scheduler = engine.scheduler()
    scheduler.submit(ask.request, ask.reader)
    (outcome,) = scheduler.run()
    return outcome


def test_five_lines(capsys: pytest.CaptureFixture[str]) -> None:
    from foretell import Choice, load

    engine = load("tiny")
    decision = engine.decide(INPUT, Choice(ASK, RANGES))
    print(decision.value, decision.answer)
    assert capsys.readouterr().out.startswith("0 to 19")


def test_every_kind_of_the_bundled_model(tiny: Engine) -> None:
    choice = tiny.decide(INPUT, Choice(ASK, RANGES)).answer
    assert isinstance(choice, ChoiceAnswer)
    assert choice.value == "0 to 19"
    assert sum(choice.probabilities.values()) == pytest.approx(1)
    best = max(choice.probabilities.values())
    assert choice.confidence == pytest.approx((4 * best - 1) / 3)
    assert choice.label_mass is not None
    assert 0.9 < choice.label_mass <= 1
    assert choice.gap > 4
    assert choice.forwards < 6
    assert tiny.decide(INPUT, Integer(ASK)).value == 7
    score = tiny.decide(INPUT, Score(ASK, RANGES)).answer
    assert isinstance(score, ScoreAnswer)
    assert score.level == "0 to 19"
    p = np.array(list(score.probabilities.values()))
    assert score.value == pytest.approx(float((p * np.arange(4)).sum()))
    assert score.confidence == pytest.approx(1 - float((p * np.arange(4)).sum()))  # D is 1 for four levels
    yes = tiny.decide(f"{INPUT} {ASK} A) 0 to 19 B) 20 to 34 C) 35 to 60 D) 61 to 99", Predicate()).answer
    assert isinstance(yes, PredicateAnswer)
    assert yes.value is True
    assert yes.probability > 0.9


def test_one_token_probabilities_are_those_of_the_model(tiny: Engine) -> None:
    plan = DecisionPlan.prepare(tiny, Choice(ASK, RANGES), steps=1)
    (ask,) = plan.start(INPUT).asks
    state = lay_out([ask.request], tiny.model.mask_id)
    columns = torch.arange(state.canvas.shape[1])[None]
    with torch.inference_mode():
        inputs = Inputs(state.canvas, columns, state.valid, columns, columns, prompt=state.prompt_length)
        logits = tiny.model(inputs)(torch.tensor([0]), torch.tensor([columns.shape[1] - 1]))[0]
    letters = [tiny.codec.encode(letter)[0] for letter in "ABCD"]
    answer: Any = tiny.decide(INPUT, Choice(ASK, RANGES), steps=1).answer
    assert list(answer.probabilities.values()) == pytest.approx(logits[letters].softmax(0).tolist(), abs=1e-5)
    assert answer.label_mass == pytest.approx(float(logits.softmax(0)[letters].sum()), abs=1e-5)
    assert tiny.decide(INPUT, Choice(ASK, RANGES), steps=1, label_mass=False).answer.label_mass is None


def test_the_least_certain_thinking_token(tiny: Engine) -> None:
    plan = DecisionPlan.prepare(tiny, Integer(ASK))
    (ask,) = plan.start(INPUT).asks
    scheduler, seen = tiny.scheduler(), list[float]()

    def watch(step: Any, row: int) -> None:
        ask.reader(step, row)
        filled = step.filled[row].clone()
        filled[[at for slot in ask.request.layout.slots for at in range(slot.offset, slot.end)]] = False
        seen.extend(step.beliefs.confidence[row][filled].tolist())

    scheduler.submit(ask.request, watch)
    (_,) = scheduler.run()
    assert len(seen) > 10
    answer = tiny.decide(INPUT, Integer(ASK)).answer
    assert answer.thinking == pytest.approx(min(seen))
    assert 0 < min(seen) < 1
    assert tiny.decide(INPUT, Integer(ASK), think=0).answer.thinking is None


def test_a_batch_equals_single_decisions(tiny: Engine) -> None:
    inputs = [INPUT, "Ann has 12 pens. She finds 20.", "Leo has 6 bags with 9 nuts each."]
    before = tiny.usage
    together = tiny.decide(inputs, Integer(ASK), batch_size=2)
    assert tiny.usage.columns_computed > before.columns_computed
    alone = [tiny.decide(one, Integer(ASK)) for one in inputs]
    for one, other in zip(together, alone, strict=True):
        assert one.value == other.value
        assert one.forwards == other.forwards


def test_a_digest_covers_everything_that_is_asked() -> None:
    asked: dict[str, Any] = {"a": Integer("?", 1), "b": Predicate("?")}
    same = digest(asked, PLAIN, 3)
    assert digest(dict(reversed(asked.items())), PLAIN, 3) == same
    others = {digest(asked, PLAIN, 4), digest(asked, DecisionTemplate(), 3), digest({"a": asked["a"]}, PLAIN, 3)}
    assert len(others - {same}) == 3


def test_a_calibrated_question_is_read_once(random: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration holds for one reading, so only a client that asks for two gets them."""
    template = DecisionTemplate(prompt="{input}{questions}", scaffold="= {slot}", think=0)
    for calibration, orders in ((None, None), (Calibration({}, "", {}), 1)):
        monkeypatch.setattr("foretell.decide.plan.read_calibration", lambda *_, found=calibration: (found, ()))
        assert DecisionPlan.prepare(random, Choice("?", ["a", "b"]), template=template).orders == orders
        assert DecisionPlan.prepare(random, Choice("?", ["a", "b"]), template=template, orders=2).orders == 2


def test_room_to_think_changes_answers(tiny: Engine) -> None:
    plan = [DecisionPlan.prepare(tiny, Choice(ASK, RANGES), think=size) for size in (0, 28)]
    lengths = [one.start(INPUT).asks[0].request.layout.length for one in plan]
    assert lengths == [4, 32]
    for one in plan:
        (ask,) = one.start(INPUT).asks
        assert ask.request.budget == ask.request.layout.length - len(ask.request.layout.pins)  # a step per mask
    with pytest.raises(RequestError, match="think must be from 0"):
        tiny.decide(INPUT, Integer(), think=-1)


def test_two_orders_are_averaged(tiny: Engine) -> None:
    first, both = (tiny.decide(INPUT, Choice(ASK, RANGES), steps=1, orders=orders) for orders in (1, 2))
    turned = tiny.decide(INPUT, Choice(ASK, RANGES[::-1]), steps=1, orders=1)
    answer: Any = both.answer
    for name in RANGES:
        mean = (first.answer.probabilities[name] + turned.answer.probabilities[name]) / 2  # type: ignore[union-attr]
        assert answer.probabilities[name] == pytest.approx(mean, abs=1e-6)
    assert (answer.reads, answer.forwards, both.forwards) == (2, 2, 2)


def test_words_have_no_order_to_reverse(random: Engine) -> None:
    """They are not listed in the prompt."""
    asked = Choice("?", ["a", "b"], read="words")
    assert random.decide("x", asked, template=PLAIN, steps=1, orders=2).answer.reads == 1


def test_a_second_order_only_where_the_first_is_unsure(random: Engine) -> None:
    template = DecisionTemplate(prompt="{input}{questions}", scaffold="= {slot}", think=0)
    reads = {
        sure: random.decide("x", Choice("?", ["a", "b"]), template=template, steps=1, sure=sure).answer.reads
        for sure in (0.0, 1.0)
    }
    assert reads == {0.0: 1, 1.0: 2}


def test_unsure_answers_abstain_or_spend_the_remaining_steps(tiny: Engine) -> None:
    asked = Choice(ASK, RANGES)
    quiet = tiny.decide(INPUT, asked, steps=1, on_unsure="abstain", sure=1.0)
    assert quiet.value is None
    assert quiet.answer.abstained
    longer = tiny.decide(INPUT, asked, steps=1, on_unsure="full", sure=1.0)
    assert longer.value == "0 to 19"
    assert longer.answer.exhausted
    assert longer.forwards > 10
    once = tiny.decide(INPUT, asked, steps=1, on_unsure="full", sure=0.0)
    assert longer.forwards == longer.answer.forwards > once.forwards
    job = DecisionPlan.prepare(tiny, asked, steps=1, on_unsure="full", sure=1.0).start(INPUT)
    (first,) = job.asks
    (more,) = job.finish(first, decode(tiny, first))
    recipe, layout = more.request.recipe, more.request.layout
    assert (recipe.stop, recipe.transfer, recipe.steps) == (Never(), Quota(), layout.length)
    assert not tiny.decide(INPUT, asked, steps=1, on_unsure="full", sure=0.0).answer.exhausted


def test_later_questions_see_earlier_answers(random: Engine) -> None:
    asked: dict[str, Any] = {"b": Choice("?", ["x", "y"], depends_on="a"), "a": Integer("?", 1)}
    plan = DecisionPlan.prepare(random, asked, template=PLAIN)
    (first,) = plan.start("z").asks
    assert first.canvas.specs.keys() == {"a"}
    decision = random.decide("z", asked, template=PLAIN)
    assert list(decision.answers) == ["b", "a"]
    assert decision.value == {name: one.value for name, one in decision.answers.items()}
    a, c = Integer("?", 1), Object({"n": Integer("?", 1)})
    for first_question in (a, c):
        job = DecisionPlan.prepare(random, asked | {"a": first_question}, template=PLAIN).start("z")
        (first,) = job.asks
        outcome = decode(random, first)
        (second,) = job.finish(first, outcome)
        (slot,), (spec,) = first.request.layout.slots, first.canvas.specs.values()
        assert isinstance(spec, Labels)
        number = spec.text_of(outcome.tokens[slot.offset : slot.end])
        said = f"a: {number}\nb:" if first_question is a else f'a: {{"n": {number}}}\nb:'
        assert [token for _, token in second.request.layout.pins] == random.codec.encode(said)


def test_questions_of_one_stage_share_a_decoding(random: Engine) -> None:
    """Its steps and passes are those of every answer, and are counted once."""
    decision = random.decide("z", {"a": Integer("?", 1), "b": Predicate("?")}, template=PLAIN, orders=1)
    for answer in decision.answers.values():
        assert (answer.steps, answer.forwards) == (decision.steps, decision.forwards)


@pytest.mark.parametrize(
    ("asked", "options", "says"),
    [
        ({}, {}, "there is no question"),
        ("what", {}, "questions are one question, a list or a mapping"),
        ({"a": "b"}, {}, "a is not a question but 'b'"),
        ({"a": Integer(depends_on="b")}, {}, "a depends on 'b'"),
        ({"a": Integer(depends_on="b"), "b": Integer(depends_on="a")}, {}, "depend on each other in a circle"),
        (Choice("", ["a", "b", "c", "d", "e"]), {}, "the labels A, B, C, D, too few for 5 choices"),
        (Integer(), {"template": "none"}, "unknown template 'none'"),
        (Integer(), {"on_unsure": "guess"}, "unknown on_unsure 'guess'"),
        (Integer(), {"orders": 3}, "orders must be from 1 to 2"),
        ({"a": Integer()}, {"template": DecisionTemplate(scaffold="{a} {a}")}, "has two slots for one question"),
        (Integer(), {"thinking": 3}, "thinking"),
        (Integer(), {"recipe": "full sample=gumbel(1.0)"}, "sample must be greedy"),
        (Integer(), {"recipe": "prophet"}, "a mean gap hides"),
        (Integer(), {"recipe": "full region=delimiter"}, "nothing is searched for"),
    ],
)
def test_impossible_decisions(tiny: Engine, asked: Any, options: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        tiny.decide(INPUT, asked, **options)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Choice("", ["a"]), "the number of choices must be from 2 to 255"),
        (lambda: Choice("", ["a", "b", "a"]), "choices must differ, but 'a' is given twice"),
        (lambda: Choice("", "ab"), "choices must be a list"),
        (lambda: Choice("", [1, 2]), "a choice must be a text, true or false, got 1"),  # type: ignore[list-item]
        (lambda: Integer("", 5), "digits must be from 1 to 4"),
        (lambda: Text("", ""), "a regex must be a text"),
        (lambda: Score(3, ["a", "b"]), "instructions must be a text, got 3"),  # type: ignore[arg-type]
        (lambda: Object({}), "needs fields"),
    ],
)
def test_impossible_questions(make: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        make()


def test_the_chain_rule_equals_enumeration(random: Engine) -> None:
    words = ["red", "reed", "ab", "a", "blue"]
    plan = DecisionPlan.prepare(random, Choice("?", words, read="words"), template=PLAIN, steps=1)
    job = plan.start("x")
    (ask,) = job.asks
    scheduler = random.scheduler()
    scheduler.submit(ask.request, ask.reader)
    (outcome,) = scheduler.run()
    sequences = ask.canvas.specs["q1"].sequences  # type: ignore[union-attr]
    nodes = job.finish(ask, outcome)
    assert len(nodes) == len({one[:size] for one in sequences for size in range(len(one))})
    slot = ask.request.layout.slots[0]

    def log_probability(tokens: tuple[int, ...]) -> float:
        """Score one label by itself, a forward pass per token."""
        total, window = 0.0, list(outcome.tokens)
        window[slot.offset : slot.end] = [random.model.mask_id] * slot.length
        for at, token in enumerate(tokens):
            canvas = torch.tensor([[*ask.request.prompt, *window]])
            columns = torch.arange(canvas.shape[1])[None]
            with torch.inference_mode():
                readout = random.model(Inputs(canvas, columns, columns >= 0, columns, columns))
                place = torch.tensor([len(ask.request.prompt) + slot.offset + at])
                total += float(readout(torch.tensor([0]), place)[0].log_softmax(0)[token])
            window[slot.offset + at] = token
        return total

    scores = torch.tensor([log_probability(one) for one in sequences], dtype=torch.float64)
    answer: Any = random.decide("x", Choice("?", words, read="words"), template=PLAIN, steps=1).answer
    assert list(answer.probabilities.values()) == pytest.approx(scores.softmax(0).tolist(), rel=1e-4)
    assert answer.label_mass == pytest.approx(float(scores.exp().sum()), rel=1e-4)
    assert answer.forwards == 1 + len(nodes)
    for node in reversed(nodes):  # in any order
        assert job.decision is None
        job.finish(node, decode(random, node))
    assert job.decision is not None
    assert job.decision.answer.probabilities == pytest.approx(answer.probabilities)  # type: ignore[union-attr]
    without = random.decide("x", Choice("?", words, read="words"), template=PLAIN, steps=1, label_mass=False).answer
    assert without.label_mass is None


class Poisoned:
    """A denoiser that returns NaN for rows that hold a certain token, and counts its passes."""

    def __init__(self, inner: Any, token: int) -> None:
        self.inner, self.token, self.mask_id, self.passes = inner, token, inner.mask_id, 0

    def __call__(self, inputs: Inputs) -> Any:
        self.passes += 1
        bad, readout = (inputs.canvas == self.token).any(dim=1), self.inner(inputs)
        return lambda row, at: readout(row, at).masked_fill(bad[row][:, None], torch.nan)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_failing_reading_ends_its_input_only(batch_size: int) -> None:
    """Two of several readings of each input fail; the first failure drops the others, also those that are done."""
    engine, asked = make_engine(0), Choice("?", ["zabc", "ab", "bac", "cab"], read="words")
    plan = DecisionPlan.prepare(engine, asked, template=PLAIN, steps=1)
    job = plan.start("x")
    nodes = job.finish(job.asks[0], decode(engine, job.asks[0]))
    (token,) = engine.codec.encode("z")
    fails = [any(held == token for _, held in one.request.layout.pins) for one in nodes]
    assert fails.count(True) == 2
    assert fails.index(True) < len(nodes) - 2
    engine.model = model = Poisoned(engine.model, token)  # type: ignore[assignment]  # it needs no cache
    done = list(decide_iter(engine, ["x", "y", "w"], plan, batch_size))
    assert sorted(index for index, _ in done) == [0, 1, 2]
    assert all(isinstance(one, ModelError) for _, one in done)
    if batch_size == 1:  # per input: the first pass, and the readings up to the one that fails
        assert model.passes == 3 * (1 + fails.index(True) + 1)


def test_a_slot_keeps_what_the_step_said_that_filled_each_position(random: Engine) -> None:
    plan = DecisionPlan.prepare(random, Text("?", "[a-d]{3}", tokens=3), template=PLAIN, recipe=LEFT_TO_RIGHT)
    (ask,) = plan.start("x").asks
    (slot,), (reader,) = ask.request.layout.slots, ask.reader.slots
    gaps, logs, scheduler = list[float](), dict[int, torch.Tensor](), random.scheduler()

    def watch(step: Any, row: int) -> None:
        ask.reader(step, row)
        for at in range(slot.offset, slot.end):
            if step.filled[row, at]:
                gaps.append(float(step.beliefs.gap[row, at]))
                logs[at] = step.beliefs.log_probabilities(row, torch.tensor([at]))[0]

    scheduler.submit(ask.request, watch)
    list(scheduler.run())
    assert len(gaps) == 3
    assert reader.gap == pytest.approx(min(gaps))
    assert gaps[-1] > min(gaps)
    expected = torch.stack([logs[at] for at in sorted(logs)])[:, slot.automaton.tokens]
    assert reader.log_probabilities.tolist() == [pytest.approx(row, abs=1e-5) for row in expected.tolist()]


def test_a_question_waits_for_all_that_it_depends_on() -> None:
    asked = {"c": Integer(depends_on=["a", "b"]), "b": Integer(depends_on="a"), "a": Integer(), "d": Integer()}
    assert [list(stage) for stage in order_stages(asked)] == [["a", "d"], ["b"], ["c"]]


def test_sums_over_a_grammar_equal_enumeration() -> None:
    codec = make_codec()
    regex = "(ab)*c?a{1,2}"
    grammar = find_grammar(regex, 4, codec)
    chance = torch.Generator().manual_seed(0)
    tokens = grammar.automaton.tokens.tolist()
    logs = torch.randn(grammar.length, len(tokens), generator=chance).log_softmax(dim=1)
    allowed = [one for one in product(tokens, repeat=grammar.length) if grammar.automaton.sequence(one) is not None]
    for one in product(tokens, repeat=grammar.length):
        size = one.index(1) if 1 in one else len(one)  # 1 is the end of text
        padded = all(token == 1 for token in one[size:])
        assert (one in allowed) == (padded and re.fullmatch(regex, codec.decode(one)) is not None)
        assert one not in allowed or grammar.decode(one, codec) == codec.decode(one)
    totals = [sum(float(logs[at, tokens.index(token)]) for at, token in enumerate(one)) for one in allowed]
    assert grammar.automaton.log_sum(logs) == pytest.approx(math.log(sum(map(math.exp, totals))), abs=1e-6)
    share = grammar.log_probability(allowed[0], logs)
    assert share == pytest.approx(totals[0] - math.log(sum(map(math.exp, totals))), abs=1e-6)


def test_texts_match(random: Engine, tiny: Engine) -> None:
    answer = random.decide("x", Text("?", "(red|blue)[0-9]{2}", tokens=12), template=PLAIN).answer
    assert isinstance(answer, TextAnswer)
    assert answer.value[:-2] in ("red", "blue")
    assert 0 < answer.probability <= 1
    assert tiny.decide(INPUT, Text(ASK, "(Tom|Ann) has [0-9]+ apples", tokens=6)).value.split()[1] == "has"
    free = tiny.decide(INPUT, Text(ASK, tokens=4)).answer
    assert isinstance(free.value, str)


def test_objects(random: Engine) -> None:
    asked = Object(
        {
            "colour": Choice("which?", ["red", "blue"]),
            "sure": Predicate(),
            "inner": {"n": Integer(digits=1), "level": Score("", ["low", "high"]), "name": Text("", "[a-c]{2}")},
        }
    )
    decision = random.decide("x", {"o": asked}, template=PLAIN)
    value = decision.value
    assert value["colour"] in ("red", "blue")
    assert isinstance(value["sure"], bool)
    assert set(value["inner"]) == {"n", "level", "name"}
    answer = decision.answer
    assert isinstance(answer, ObjectAnswer)
    assert isinstance(answer.fields["o.inner.level"], ScoreAnswer)
    assert random.decide("x", asked, template=PLAIN, on_unsure="abstain", sure=1.0).value is None


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string"}, "a schema must describe an object"),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, r"\$: the object is not closed"),
        ({"type": "object", "properties": {"a": {"type": "null"}}, **CLOSED}, "every property must be required"),
        ({"a": {"type": "date"}}, r"\$.a: unknown type 'date'"),
        ({"a": {"type": "string", "format": "email"}}, r"\$.a: 'format' is not supported for type string"),
        ({"a": {"type": "array", "items": {"type": "null"}}}, r"\$.a: an array needs maxItems"),
        ({"a": {"type": "array", "maxItems": 2, "items": {"type": "string", "pattern": "x"}}}, r"\$.a\[\]: a pattern"),
        ({"a": {"type": "string", "pattern": "x", "maxLength": 2}}, "a pattern and a length together"),
        ({"a": {"type": "array", "minItems": 3, "maxItems": 2, "items": {}}}, "minItems 3 is above maxItems 2"),
        ({"a": {"type": "integer", "minimum": 0, "maximum": 10_000}}, "10001 integers are too many"),
        ({"a": {"type": "integer", "minimum": 1}}, "needs a minimum and a maximum"),
        ({"a": {"type": "integer", "minimum": 1, "maximum": 10**6}}, "are too many"),
        ({"a": {"enum": ["x"], "type": "integer"}}, "no value of the enum has the type 'integer'"),
        ({"a": {"anyOf": [{"type": "null"}, {"type": "any"}]}}, r"\$.a.anyOf\[1\]: unknown type 'any'"),
        ({"a": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, r"\$.a.anyOf\[1\]: unknown reference '#'"),
        ({"a": {"type": "array", "items": {"$ref": ["a"]}}}, r"\$.a\[\]: unknown reference \['a'\]"),
    ],
)
def test_schemas_that_cannot_be_served(schema: Any, says: str) -> None:
    if "type" not in schema:
        schema = {"type": "object", "properties": schema, "required": ["a"], **CLOSED}
    with pytest.raises(RequestError, match=says):
        Object.from_schema(schema)


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 12, "multipleOf": 3}, (6, 9)),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": 1, "maximum": 4, "exclusiveMaximum": 9}, (3, 4)),
        ({"type": "integer", "minimum": 1, "maximum": 10_000}, tuple(range(1, 10_001))),
        ({"type": "integer", "enum": [1, True, "1", 2]}, (1, 2)),
        ({"type": "number", "enum": [1.5, True, 2]}, (1.5, 2)),
        ({"type": "boolean", "enum": [1, True]}, (True,)),
        ({"enum": [{"a": 1, "b": 2}, 1, {"b": 2, "a": 1}]}, ({"b": 2, "a": 1}, 1)),
        ({"enum": [1, True, 1.0]}, (1, True, 1.0)),
    ],
)
def test_the_values_of_a_field(schema: dict[str, Any], values: tuple[Any, ...]) -> None:
    """Booleans are no numbers, and the order of keys makes no other object."""
    made = Object.from_schema({"type": "object", "properties": {"a": schema}, "required": ["a"], **CLOSED})
    assert repr(made.leaves("x")["x.a"].values) == repr(values)


def test_the_anchors_of_a_pattern_are_not_part_of_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^ab$"}}, "required": ["a"], **CLOSED}
    assert Object.from_schema(schema).leaves("x")["x.a"].regex == "ab"


def test_references_are_replaced_by_their_definitions() -> None:
    colour = {"enum": ["red", "blue"]}
    pair = {"type": "object", "properties": {"c": {"$ref": "#/$defs/colour"}}, "required": ["c"], **CLOSED}
    schema = {
        "$defs": {"colour": colour, "pair": pair},
        "definitions": {"n": {"type": "integer", "minimum": 1, "maximum": 2}},
        "type": "object",
        "properties": {
            "p": {"$ref": "#/$defs/pair", "description": "both"},
            "l": {"type": "array", "items": {"$ref": "#/definitions/n"}, "minItems": 1, "maxItems": 1},
            "o": {"anyOf": [{"$ref": "#/$defs/colour"}, {"type": "null"}]},
        },
        "required": ["p", "l", "o"],
        **CLOSED,
    }
    leaves = Object.from_schema(schema).leaves("x")
    assert list(leaves) == ["x.p.c", "x.l", "x.o"]
    assert leaves["x.p.c"].values == ("red", "blue")
    assert re.fullmatch(str(leaves["x.l"].regex), "[2]")
    assert re.fullmatch(str(leaves["x.o"].regex), "null")
    for name, inner, says in (
        ("pair", {**pair, "properties": {"c": {"$ref": "#/$defs/pair"}}}, "contains itself"),
        ("colour", 5, r"\$.p.c: a schema must be an object"),
    ):
        with pytest.raises(RequestError, match=says):
            Object.from_schema({**schema, "$defs": {**schema["$defs"], name: inner}})  # type: ignore[dict-item]
    with pytest.raises(RequestError, match=r"\$.definitions must be an object"):
        Object.from_schema({**schema, "definitions": []})
    twice = {
        f"d{at}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/d{at + 1}"} for key in "ab"},
            "required": ["a", "b"],
            **CLOSED,
        }
        for at in range(30)
    }
    with pytest.raises(RequestError, match="1000 times"):
        Object.from_schema({**twice["d0"], "$defs": {**twice, "d30": colour}})


def test_regular_expressions_that_cannot_be_served(random: Engine) -> None:
    for regex, says in (
        ("(?=a)b", "cannot be used"),
        ("[a]{9}", "allow more tokens"),
        ("a" * 10_001, "10000 characters"),
    ):
        with pytest.raises(RequestError, match=says):
            random.decide("x", Text("", regex, tokens=4), template=PLAIN)


def test_limits_of_regular_expressions(tiny: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = make_codec()
    assert find_grammar("[c]{4}", 4, codec).length == 4
    with pytest.raises(RequestError, match="no text of up to 3 tokens"):
        find_grammar("[c]{4}", 3, codec)
    with pytest.raises(RequestError, match="the vocabulary cannot spell a text that matches 'Tom Zebra'"):
        find_grammar("Tom Zebra", 6, tiny.codec)
    monkeypatch.setattr("foretell.decide.grammar.LONGEST_REGEX", 4)
    assert find_grammar("cccc", 4, make_codec()).length == 4
    with pytest.raises(RequestError, match="4 characters, got 5"):
        find_grammar("ccccc", 5, make_codec())


def test_choices_beyond_the_letters_are_numbered_from_one() -> None:
    template = DecisionTemplate(labels="AB")
    assert list_choices(Choice("", ["x", "y"]), template) == [("A", "x"), ("B", "y")]
    asked = Choice("", {"x": None, "y": "why", "z": None})
    assert list_choices(asked, template) == [("1", "x"), ("2", "y: why"), ("3", "z")]
    assert list_choices(asked, template, reverse=True) == [("1", "z"), ("2", "y: why"), ("3", "x")]


def test_a_job_and_other_requests_share_a_scheduler(tiny: Engine) -> None:
    scheduler = tiny.scheduler(8)
    plan = DecisionPlan.prepare(tiny, Choice(ASK, RANGES), orders=2)
    other = tiny.request(INPUT + " " + ASK, tiny.template(recipe="swift"))
    scheduler.submit(other)
    job = plan.start(INPUT)
    waiting = {scheduler.submit(ask.request, ask.reader): ask for ask in job.asks}
    previews = []
    while scheduler.busy:
        for outcome in scheduler.step():
            if outcome.ticket in waiting:
                assert isinstance(outcome, foretell.engine.outcome.Outcome)
                for ask in job.finish(waiting.pop(outcome.ticket), outcome):
                    waiting[scheduler.submit(ask.request, ask.reader)] = ask
        previews += [ask.preview()["q1"] for ask in job.asks]
    assert job.decision is not None
    assert job.decision.value == tiny.decide(INPUT, Choice(ASK, RANGES), orders=2).value
    assert all([value for value, _ in one] == RANGES for one in previews)


def test_messages_are_inputs(tiny: Engine) -> None:
    chat = [{"role": "user", "content": INPUT}]
    assert tiny.decide(chat, Integer(ASK)).prompt_tokens > len(tiny.codec.encode(INPUT))
    with pytest.raises(RequestError, match="exceed the context"):
        tiny.decide(" ".join([INPUT] * 30), Integer(ASK))


def test_a_canvas_may_reach_the_end_of_the_context() -> None:
    engine = make_engine(0)
    request = DecisionPlan.prepare(engine, Integer("?", 1), template=PLAIN).start("x").asks[0].request
    size = len(request.prompt) + request.layout.length
    for engine.context in (size, size - 1):
        plan = DecisionPlan.prepare(engine, Integer("?", 1), template=PLAIN)
        if engine.context == size:
            assert plan.start("x").asks
        else:
            with pytest.raises(RequestError, match=f"exceed the context of {size - 1} tokens"):
                plan.start("x")


def test_seeds_are_those_of_generate(random: Engine) -> None:
    for prompt in ("x", "y"):
        (ask,) = DecisionPlan.prepare(random, Integer("?", 1), template=PLAIN, seed=5).start(prompt).asks
        assert ask.request.seed == derive_seed(5, ask.request.prompt)


def test_an_answer_is_unsure_below_the_limit_only(random: Engine) -> None:
    plan = DecisionPlan.prepare(random, Integer("?", 1), template=PLAIN, sure=0.5)
    spec: Any = None
    for best, unsure in ((0.5, False), (0.49, True)):
        reading = Reading(spec, None, np.array([best, 0.4, 0.6 - best]), None, 0.0, ())
        assert plan._unsure("q1", reading) == unsure


def test_a_failing_input_names_its_place(tiny: Engine) -> None:
    with pytest.raises(foretell.VocabularyError, match=r"inputs\[1\]: the model's vocabulary has no"):
        tiny.decide([INPUT, "Zebra"], Integer(ASK))
    assert (
        Request((1,), DecisionPlan.prepare(tiny, Integer()).start(INPUT).asks[0].request.layout).recipe.stop == Never()
    )


def test_equal_labels_are_encoded_once(tiny: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And equal values of other types are other labels."""
    first = DecisionPlan.prepare(tiny, Integer(ASK)).start(INPUT).asks[0].canvas.specs["q1"]
    monkeypatch.setattr(Labels, "of", lambda *_: pytest.fail("the labels are known"))
    assert DecisionPlan.prepare(tiny, Integer("How many?")).start("Tom").asks[0].canvas.specs["q1"] is first
    monkeypatch.undo()
    truths = [(False, ("A",)), (True, ("B",))]
    numbers = [(0, ("A",)), (1, ("B",))]
    assert find_labels(truths, None, tiny.codec) is find_labels(truths, None, tiny.codec)
    assert [type(one) for one in find_labels(numbers, None, tiny.codec).values] == [int, int]
    assert find_labels(truths, "= ", tiny.codec) is not find_labels(truths, None, tiny.codec)
    monkeypatch.setattr("foretell.decide.labels.REMEMBERED", 0)
    assert find_labels([("a", ("C",))], None, tiny.codec).texts == ("C",)
    assert find_labels(truths, None, replace(tiny.codec)) is not find_labels(truths, None, tiny.codec)


def test_a_slot_holds_a_label_whatever_its_spelling(tiny: Engine) -> None:
    made = find_labels([(True, ("A", "B")), (False, ("C",))], None, tiny.codec)
    assert [made.text_of(one) for one in made.sequences] == ["A", "A", "C"]


def test_labels_are_padded_with_the_first_end_of_text(tiny: Engine) -> None:
    assert len(tiny.codec.end_ids) == 2
    made = Labels.of([("a", ("A",)), ("b", ("A B",))], "The answer is ", tiny.codec)
    assert made.sequences == ((*tiny.codec.encode("A"), tiny.codec.end_ids[0]), tuple(tiny.codec.encode("A B")))
    with pytest.raises(RequestError, match="the labels 'a' and 'b' have the same tokens"):
        Labels.of([("a", ("A",)), ("b", ("A",))], "", tiny.codec)


def test_labels_of_different_lengths_need_an_end_of_text() -> None:
    codec = replace(make_codec(), end_ids=())
    assert len(Labels.of([("a", ("a",)), ("b", ("b",))], "", codec).sequences) == 2
    with pytest.raises(RequestError, match="this model has none"):
        Labels.of([("a", ("a",)), ("b", ("cd",))], "", codec)


def test_a_label_that_the_tokenizer_joins_with_the_text_before_it_is_encoded_alone() -> None:
    codec = make_codec()
    assert codec.encode("true") == [codec.tokenizer.token_to_id("true")]
    assert encode_after("t", "rue", codec) == codec.encode("rue")


def test_masks_after_the_scaffold(random: Engine) -> None:
    lengths = [
        DecisionPlan.prepare(random, Integer("?", 1), template=msgspec.structs.replace(PLAIN, trailing=size))
        .start("x")
        .asks[0]
        .request.layout.length
        for size in (0, 5)
    ]
    assert lengths[1] - lengths[0] == 5


def test_bare_words_have_blanks_between_them(tiny: Engine) -> None:
    grammar = find_grammar("[A-Za-z ]+[0-9]+", 6, tiny.codec)
    tokens = tiny.codec.encode("Tom has 12")
    held = (*tokens, *tiny.codec.end_ids[:1] * (grammar.length - len(tokens)))
    assert grammar.decode(held, tiny.codec) == "Tom has12"  # digits take no blank unless the expression demands one

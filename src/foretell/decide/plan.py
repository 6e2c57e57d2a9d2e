"""Decisions: questions that are checked before anything is decoded, and the requests per input, round by round."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, get_args, get_type_hints

import numpy as np

from foretell.decide.answers import Decision
from foretell.decide.calibration import Calibration
from foretell.decide.canvas import Asked, Canvas, lay_out_canvas, write_prompt
from foretell.decide.finish import Reading, finish_question, written
from foretell.decide.labels import Labels
from foretell.decide.options import DecideOptions, check_recipe, choose_template, make_base, read_calibration
from foretell.decide.prompts import digest
from foretell.decide.questions import Choice, Questions, name_questions, order_stages
from foretell.decide.reading import CanvasReader
from foretell.decide.trie import ask_node, chain_scores, inner_nodes
from foretell.engine.certificate import recipe_of
from foretell.engine.engine import Engine
from foretell.engine.folder import DecisionTemplate
from foretell.engine.options import RequestTemplate
from foretell.engine.outcome import Outcome
from foretell.engine.request import Request, derive_seed
from foretell.errors import RequestError, one_of, show, whole, within
from foretell.loop.slots import Slot
from foretell.models.chat import Message
from foretell.policies.stop.never import Never
from foretell.policies.transfer.quota import Quota
from foretell.storage import check_keys

ON_UNSURE = ("answer", "abstain", "full")
SURE = 0.9  # probability of the best label below which an answer is unsure
Input = str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for the scheduler, with the observer that has to be submitted along with it."""

    request: Request
    reader: CanvasReader
    canvas: Canvas

    def preview(self) -> dict[str, list[tuple[Any, float]]]:
        """Return each question's labels with their probabilities at the latest step, to display progress."""
        slots = zip(self.canvas.specs.items(), self.reader.slots, strict=False)
        return {
            name: list(zip(spec.values, spec.probabilities(spec.scores(slot.logits)).tolist(), strict=True))
            for (name, spec), slot in slots
            if isinstance(spec, Labels)
        }


@dataclass(frozen=True, slots=True)
class Decoded:
    """A canvas that has been decoded."""

    ask: Ask
    outcome: Outcome


Rounds = Generator[list[Ask], list[Outcome], Decision]
Readings = Generator[list[Ask], list[Outcome], dict[str, Reading]]


@dataclass(frozen=True, slots=True)
class DecisionPlan:
    """Checked questions, and how to ask them. `start` returns the job that asks them about one input."""

    engine: Engine
    questions: Mapping[str, Asked]
    template: DecisionTemplate
    base: RequestTemplate  # recipe, seed and notes of all requests
    think: int
    orders: int | None
    on_unsure: str
    sure: float
    mass: bool
    calibration: Calibration | None

    @classmethod
    def prepare(cls, engine: Engine, questions: Questions, **options: Unpack[DecideOptions]) -> DecisionPlan:
        """Check everything that does not depend on the input."""
        check_keys(options, tuple(get_type_hints(DecideOptions)), RequestError)
        named = name_questions(questions, get_args(Asked))
        chosen = choose_template(engine, named, options.get("template"))
        on_unsure, sure = options.get("on_unsure", "answer"), options.get("sure", SURE)
        one_of("on_unsure", on_unsure, ON_UNSURE, RequestError)
        within("sure", sure, 0.0, 1.0, RequestError)
        given = options.get("think")
        think = chosen.think if given is None else given
        whole("think", think, 0, engine.context, RequestError)
        recipe = options.get("recipe")
        recipe = recipe_of(chosen.recipe if recipe is None else recipe)
        asked = digest(named, chosen, think)
        calibration, notes = read_calibration(recipe, asked, options)
        wanted = options.get("orders")
        orders = wanted if wanted is not None else chosen.orders if calibration is None else 1
        if orders is not None:
            whole("orders", orders, 1, 2, RequestError)
        base = make_base(engine, recipe, options)
        made = cls(
            engine,
            named,
            chosen,
            replace(base, notes=(*base.notes, *notes)),
            think=think,
            orders=orders,
            on_unsure=on_unsure,
            sure=sure,
            mass=options.get("label_mass", True),
            calibration=calibration,
        )
        for stage in order_stages(named):
            check_recipe(made.base, made._canvas(stage, {}).layout)
        return made

    @property
    def labels(self) -> dict[str, list[str]]:
        """The labels of every question or field as they are written; empty for texts."""
        canvases = (self._canvas(stage, {}) for stage in order_stages(self.questions))
        specs = [pair for canvas in canvases for pair in canvas.specs.items()]
        return {name: list(spec.texts) if isinstance(spec, Labels) else [] for name, spec in specs}

    def describe(self) -> str:
        """Return everything that determines the answers, except the model and the input, as a text."""
        how = (self.base.recipe, self.base.seed, self.orders, self.on_unsure, self.sure, self.mass, self.calibration)
        return f"{digest(self.questions, self.template, self.think)} {how}"

    def start(self, given: Input) -> Job:
        """Return the job that answers the questions about one input. Raises an error if the input cannot be decoded."""
        return Job(self._rounds(given))

    def _rounds(self, given: Input) -> Rounds:
        """Yield the requests of each round, receive their outcomes, and return the decision."""
        readings: dict[str, Reading] = {}
        done: dict[str, Asked] = {}
        for stage in order_stages(self.questions):
            answered = {name: written(name, one, readings) for name, one in done.items()}
            readings |= yield from self._answer_stage(given, stage, answered)
            done |= stage
        outcomes = list({id(one): one for reading in readings.values() for one in reading.outcomes}.values())
        unsure = {name for name, one in readings.items() if self.on_unsure == "abstain" and self._unsure(name, one)}
        kinds = {} if self.calibration is None else self.calibration.kinds
        return Decision(
            {name: finish_question(name, one, readings, unsure, kinds) for name, one in self.questions.items()},
            steps=sum(one.steps for one in outcomes),
            forwards=sum(one.forwards for one in outcomes),
            prompt_tokens=len(outcomes[0].request.prompt),
            seconds=sum(one.seconds for one in outcomes),
            notes=self.base.notes,
        )

    def _answer_stage(self, given: Input, stage: Mapping[str, Asked], answered: Mapping[str, str]) -> Readings:
        """Answer the questions of one stage on one canvas, with further readings where the first one is unsure."""
        canvas = self._canvas(stage, answered)
        prompt = self._encode(given, stage)
        asked = yield from _decode(self._ask(prompt, canvas))
        readings = yield from self._gather(asked)
        turned = [name for name, one in stage.items() if isinstance(one, Choice) and one.read == "letters"]
        if self.orders is None:
            turned = [name for name in turned if self._unsure(name, readings[name])]
        if turned and self.orders != 1:
            other = self._canvas(stage, answered, reverse=True)
            ask = self._ask(self._encode(given, stage, reverse=True), other)
            again = yield from self._gather((yield from _decode(ask)))
            readings |= {name: readings[name].average(again[name]) for name in turned}
        unsure = [name for name, one in readings.items() if self._unsure(name, one)]
        if unsure and self.on_unsure == "full":
            more = yield from self._gather((yield from _decode(self._ask_on(asked))))
            readings |= {name: readings[name].continued(more[name]) for name in unsure}
        return readings

    def _unsure(self, name: str, reading: Reading) -> bool:
        asked, learned = self.questions.get(name), None
        if self.calibration is not None and asked is not None:  # fields of an object are not calibrated
            learned = self.calibration.kinds.get(asked.kind)
        p = reading.probabilities if learned is None else learned.apply(reading.probabilities, reading.thinking)
        return bool(p.max() < self.sure)

    def _gather(self, decoded: Decoded) -> Readings:
        """Return what a decoded canvas says about its slots. Words of several tokens take one more round."""
        ask, outcome = decoded.ask, decoded.outcome
        readings = {}
        for (name, spec), slot in zip(ask.canvas.specs.items(), ask.reader.slots, strict=True):
            reading = Reading.of(spec, slot, outcome, self.engine.codec, ask.reader.thinking)
            question = self.questions.get(name)
            if isinstance(spec, Labels) and spec.length > 1 and isinstance(question, Choice):
                reading = yield from self._chain(reading, spec, slot.slot)
            readings[name] = reading
        return readings

    def _chain(self, first: Reading, labels: Labels, slot: Slot) -> Generator[list[Ask], list[Outcome], Reading]:
        """Return a reading by the chain rule, on the canvas of the first one."""
        prefixes, (outcome,) = inner_nodes(labels), first.outcomes
        requests = [ask_node(prefix, labels, slot, outcome, self.engine.model.mask_id) for prefix in prefixes]
        asks = [Ask(one, CanvasReader(one.layout), Canvas(one.layout, {})) for one in requests]
        outcomes = yield asks
        readers = (ask.reader.slots[0] for ask in asks)
        scores = chain_scores(labels, dict(zip(prefixes, readers, strict=True)))
        return replace(
            first,
            probabilities=labels.probabilities(scores),
            mass=float(np.exp(scores).sum()) if self.mass else None,
            outcomes=(*first.outcomes, *outcomes),
        )

    def _canvas(self, stage: Mapping[str, Asked], answered: Mapping[str, str], *, reverse: bool = False) -> Canvas:
        return lay_out_canvas(stage, answered, self.template, self.engine.codec, self.think, reverse=reverse)

    def _encode(self, given: Input, stage: Mapping[str, Asked], *, reverse: bool = False) -> list[int]:
        """Return the tokens of the prompt. The questions about a conversation are its next message."""
        codec = self.engine.codec
        if isinstance(given, str):
            return codec.prompt(write_prompt(given, stage, self.template, reverse=reverse))
        if not isinstance(given, Sequence):
            raise RequestError(f"an input is a text or a list of messages, got {show(given)}")
        asked = write_prompt("", stage, self.template, reverse=reverse)
        return codec.prompt([*given, {"role": "user", "content": asked}])

    def _ask(self, prompt: Sequence[int], canvas: Canvas) -> Ask:
        layout = canvas.layout
        if len(prompt) + layout.length > self.engine.context:
            raise RequestError(
                f"a prompt of {len(prompt)} tokens and a canvas of {layout.length} exceed the context of "
                f"{self.engine.context} tokens that this model supports"
            )
        recipe = self.base.recipe
        if recipe.steps is None:
            recipe = replace(recipe, steps=layout.length - len(layout.pins))
        seed = derive_seed(self.base.seed, prompt)
        return Ask(Request(tuple(prompt), layout, recipe, seed), CanvasReader(layout, mass=self.mass), canvas)

    def _ask_on(self, asked: Decoded) -> Ask:
        """Return a request that goes on from a decoded canvas, opens its slots again and fills one mask per step."""
        request, layout = asked.outcome.request, asked.ask.canvas.layout
        slotted = {at for slot in layout.slots for at in range(slot.offset, slot.end)}
        mask = self.engine.model.mask_id
        pins = [(at, token) for at, token in enumerate(asked.outcome.tokens) if token != mask and at not in slotted]
        rest = replace(layout, pins=tuple(pins))
        recipe = replace(request.recipe, steps=rest.length, stop=Never(), transfer=Quota())
        return Ask(replace(request, layout=rest, recipe=recipe), CanvasReader(rest, mass=self.mass), asked.ask.canvas)


class Job:
    """The requests of one decision. Submit its `asks`, and give the outcome of each to `finish`."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._outcomes: dict[int, Outcome] = {}  # by place among the asks
        self.decision: Decision | None = None  # once all requests are done
        self.asks = next(rounds)  # of the present round

    def finish(self, ask: Ask, outcome: Outcome) -> list[Ask]:
        """Take the outcome of one ask. Returns the asks of the next round, if there is one and this round is over."""
        self._outcomes[next(place for place, one in enumerate(self.asks) if one is ask)] = outcome
        if len(self._outcomes) < len(self.asks):
            return []
        outcomes = [self._outcomes[place] for place in range(len(self.asks))]
        self._outcomes.clear()
        try:
            self.asks = self._rounds.send(outcomes)
        except StopIteration as done:
            self.asks, self.decision = [], done.value
        return self.asks


def _decode(ask: Ask) -> Generator[list[Ask], list[Outcome], Decoded]:
    (outcome,) = yield [ask]
    return Decoded(ask, outcome)

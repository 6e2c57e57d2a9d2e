"""Decisions over HTTP: `/v1/decisions` and `/v1/systemone`, decoded by the same worker as everything else."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretell.decide.answers import Decision
from foretell.decide.objects import Object
from foretell.decide.options import DecideOptions
from foretell.decide.plan import Ask, DecisionPlan, Job
from foretell.decide.questions import Question
from foretell.engine.certificate import Certificate
from foretell.errors import ForetellError
from foretell.loop.decode import Step
from foretell.serve.answer import KEEP_ALIVE, describe_wait, problem_of_failure
from foretell.serve.bodies import ChatBody, read_body, read_json
from foretell.serve.dialects import Chat, count_usage, envelope
from foretell.serve.mailbox import Done, Event, Failed, Mailbox, Preview, wait_for_events
from foretell.serve.problems import Problem, problem_of
from foretell.serve.questions import (
    DecisionBody,
    SystemOneBody,
    check_repeated,
    describe_decision,
    read_input,
    read_questions,
    write_decision,
)
from foretell.serve.service import Service
from foretell.serve.worker import Ticket

OPTIONS = ("template", "think", "steps", "orders", "on_unsure", "sure", "seed")
WITHOUT_SCHEMA = (  # parameters of a chat that a JSON schema excludes
    *("n", "temperature", "top_p", "top_k", "stop", "logprobs", "top_logprobs", "drafts", "diffusing", "trace"),
    *("layout", "suffix", "answer_suffix", "answer_length", "block_length", "stop_rule"),
)


@dataclass
class Deciding:
    """A decision that is being decoded. Subclasses define the response."""

    service: Service
    route: str
    plan: DecisionPlan
    job: Job
    streams: bool

    def __post_init__(self) -> None:
        self._box = Mailbox()
        self._tickets: dict[int, tuple[Ticket, Ask]] = {}
        self._count = self.passes = self.tokens = 0
        self.name = f"decision-{secrets.token_hex(12)}"

    @property
    def recipe(self) -> str:
        return str(self.plan.base.recipe)

    def start(self) -> None:
        """Submit the first requests. Raises Problem if the server is too busy."""
        self._submit(self.job.asks)

    def _submit(self, asks: Sequence[Ask]) -> None:
        tickets = {self._count + place: (self._ticket(self._count + place, ask), ask) for place, ask in enumerate(asks)}
        self._count += len(asks)
        self.service.worker.submit(*(ticket for ticket, _ in tickets.values()))
        self._tickets |= tickets

    def _ticket(self, index: int, ask: Ask) -> Ticket:
        def preview(step: Step, row: int) -> None:
            self._box.put(index, Preview(int(step.before.step[row]), ask.preview()))

        observers = (ask.reader, preview) if self.streams else (ask.reader,)
        return Ticket(ask.request, self.plan.base, lambda event: self._box.put(index, event), observers)

    def close(self) -> None:
        """Drop the requests that are not done."""
        for ticket, _ in self._tickets.values():
            self.service.worker.cancel(ticket)
        self._tickets.clear()

    async def _events(self) -> AsyncIterator[Event | None]:
        """Yield events until the decision is made; None if nothing happens for a while."""
        seconds = self.service.limits.timeout
        async for one in wait_for_events(self._box, seconds, KEEP_ALIVE, lambda: self.job.decision is not None):
            if one is not None:
                self._take(*one)
            yield None if one is None else one[1]

    def _take(self, index: int, event: Event) -> None:
        if isinstance(event, Failed):
            raise problem_of_failure(event.error)
        if not isinstance(event, Done):
            return
        _, ask = self._tickets.pop(index)
        outcome = event.outcome
        self.passes += outcome.forwards
        self.service.metrics.count_outcome(outcome)
        try:
            following = self.job.finish(ask, outcome)
        except ForetellError as error:
            raise problem_of(error, "questions") from None
        self._submit(following)

    def _wait(self) -> str:
        return describe_wait(self.service.worker, (ticket for ticket, _ in self._tickets.values()))

    def _finish(self, tokens: int) -> Decision:
        """Return the decision, and count its tokens."""
        decision = self.job.decision
        assert decision is not None, "the last event made it"
        self.tokens = tokens
        self.service.metrics.count_tokens(decision.prompt_tokens, tokens, [])
        return decision


@dataclass
class DecisionAnswer(Deciding):
    """A decision in one of the two dialects."""

    body: DecisionBody | SystemOneBody

    async def respond(self) -> dict[str, Any]:
        """Wait for the decision and return the response."""
        async for _ in self._events():
            pass
        return self._write()

    def _write(self) -> dict[str, Any]:
        return write_decision(self.body, self._finish(len(self.plan.questions)), self.service.model)

    async def stream(self) -> AsyncIterator[dict[str, Any] | str]:
        """Yield the probabilities of every step, then the response, and texts of comments while nothing happens."""
        async for event in self._events():
            if isinstance(event, Preview):
                shown = {
                    name: [{"value": value, "probability": round(one, 4)} for value, one in labels]
                    for name, labels in event.labels.items()
                }
                yield {"object": "decision.preview", "step": event.step, "questions": shown}
            elif event is None:
                yield self._wait()
        yield {"object": "decision", **self._write()}


@dataclass
class SchemaAnswer(Deciding):
    """A chat completion whose text is JSON that follows a closed schema."""

    dialect: Chat
    usage: bool  # whether a stream ends with the usage

    async def respond(self) -> dict[str, Any]:
        """Wait for the object and return the response."""
        async for _ in self._events():
            pass
        text, usage, work = self._text()
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {**self._envelope(part=False), "choices": [choice], "usage": usage, "foretell": work}

    async def stream(self) -> AsyncIterator[dict[str, Any] | str]:
        """Yield the text as one delta, when it is finished."""
        yield self._chunk([self.dialect.delta(0, None, None, first=True)])
        async for event in self._events():
            if event is None:
                yield self._wait()
        text, usage, work = self._text()
        yield self._chunk([self.dialect.delta(0, text, None)])
        yield self._chunk([self.dialect.delta(0, None, "stop")], foretell=work)
        if self.usage:
            yield self._chunk([], usage=usage)

    def _text(self) -> tuple[str, dict[str, int], dict[str, Any]]:
        """Return the JSON text, its usage, and what it took."""
        decision = self._finish(len(self.plan.questions))
        (answer,) = decision.answers.values()
        usage = count_usage(decision.prompt_tokens, self.tokens)
        return json.dumps(answer.value, ensure_ascii=False), usage, describe_decision(decision)

    def _envelope(self, *, part: bool) -> dict[str, Any]:
        return envelope(self.dialect, self.name, self.service.model, part=part)

    def _chunk(self, choices: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
        return {**self._envelope(part=True), "choices": choices, **extra}


def prepare_decision(route: str, service: Service, raw: bytes) -> Callable[[], DecisionAnswer]:
    """Check a body of either format (told apart by `state` and `input`), and return a function that makes its answer.

    Raises Problem if it is refused.
    """
    kind: type[DecisionBody | SystemOneBody] = SystemOneBody if "state" in read_json(raw) else DecisionBody
    body, notes = read_body(raw, kind)
    service.check_model(body.model)
    check_repeated(raw)
    given, questions = read_input(body), read_questions(body)
    options: DecideOptions = {name: getattr(body, name) for name in OPTIONS if getattr(body, name) is not None}  # type: ignore[assignment]  # the names are those of both
    if body.recipe is not None:
        options["recipe"] = _find_recipe(service, body.recipe)
    try:
        plan = _prepare_plan(service, questions, options)
        plan = replace(plan, base=replace(plan.base, notes=(*notes, *plan.base.notes)))
        job = plan.start(given)
    except ForetellError as error:
        raise problem_of(error, _name_param(error, body)) from None
    return lambda: DecisionAnswer(service, route, plan, job, bool(body.stream), body)


def _prepare_plan(service: Service, questions: Mapping[str, Question], options: DecideOptions) -> DecisionPlan:
    """Return a plan with the tuned file whose calibration holds for the request, unless the client chose a recipe."""
    if "recipe" not in options:
        for tuned in service.offers.calibrated:
            plan = DecisionPlan.prepare(service.engine, questions, **options | {"recipe": tuned})
            if plan.calibration is not None:
                return plan
    return DecisionPlan.prepare(service.engine, questions, **options)


def prepare_object(
    service: Service, body: ChatBody, schema: Mapping[str, Any], notes: Sequence[str]
) -> Callable[[], SchemaAnswer]:
    """Check a chat whose answer has to follow a closed JSON schema. Raises Problem if it is not supported."""
    for name in WITHOUT_SCHEMA:
        if getattr(body, name) and not (name == "n" and body.n == 1):
            raise Problem(
                400, f"{name} is not supported with a JSON schema: leave it out", param=name, code="unsupported"
            )
    service.check_model(body.model)
    options: DecideOptions = {"seed": body.seed or 0}
    if body.recipe is not None:
        options["recipe"] = _find_recipe(service, body.recipe)
    if body.steps is not None:
        options["steps"] = body.steps
    if body.cap is not None:
        notes = (*notes, "max_tokens has no effect with a JSON schema, which limits the length itself")
    try:
        question = Object.from_schema(schema)
        plan = DecisionPlan.prepare(service.engine, {"answer": question}, **options)
        plan = replace(plan, base=replace(plan.base, notes=(*notes, *plan.base.notes)))
        alone = len(body.messages) == 1 and isinstance(body.messages[0].get("content"), str)
        job = plan.start(body.messages[0]["content"] if alone else body.messages)
    except ForetellError as error:
        raise problem_of(error, "recipe" if body.recipe and "recipe" in str(error) else "response_format") from None
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return lambda: SchemaAnswer(service, Chat.route, plan, job, bool(body.stream), Chat(), usage)


def _find_recipe(service: Service, asked: str) -> str | Certificate:
    try:
        return service.offers.recipe(asked)
    except ForetellError as error:
        raise problem_of(error, "recipe") from None


def _name_param(error: ForetellError, body: DecisionBody | SystemOneBody) -> str:
    """Return the parameter that an error is about."""
    given = (name for name in ("recipe", *OPTIONS) if getattr(body, name) is not None)
    return next((name for name in given if name in str(error)), "questions")

"""Decisions over HTTP: `/v1/decisions` and `/v1/systemone`, decoded by the same worker as everything else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretell.decide.plan import Ask, DecideOptions, DecisionPlan, Job
from foretell.errors import ForetellError
from foretell.loop.decode import Step
from foretell.serve.answer import KEEP_ALIVE, describe_wait, problem_of_failure
from foretell.serve.bodies import read_body, read_json
from foretell.serve.mailbox import Done, Event, Failed, Mailbox, Preview, wait_for_events
from foretell.serve.problems import problem_of
from foretell.serve.questions import (
    DecisionBody,
    SystemOneBody,
    read_input,
    read_questions,
    write_decision,
)
from foretell.serve.service import Service
from foretell.serve.worker import Ticket

OPTIONS = ("template", "think", "steps", "orders", "on_unsure", "sure", "seed")


@dataclass
class DecisionAnswer:
    """A decision that is being made."""

    service: Service
    route: str
    body: DecisionBody | SystemOneBody
    plan: DecisionPlan
    job: Job

    def __post_init__(self) -> None:
        self._box = Mailbox()
        self._tickets: dict[int, tuple[Ticket, Ask]] = {}
        self._count = self.passes = self.tokens = 0

    @property
    def streams(self) -> bool:
        return bool(self.body.stream)

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

    async def respond(self) -> dict[str, Any]:
        """Wait for the decision and return the response."""
        async for _ in self._events():
            pass
        return self._write()

    def _write(self) -> dict[str, Any]:
        decision = self.job.decision
        assert decision is not None, "the last event made it"
        self.tokens = len(decision.answers)
        self.service.metrics.count_tokens(decision.prompt_tokens, self.tokens, [])
        return write_decision(self.body, decision, self.service.model)

    async def stream(self) -> AsyncIterator[dict[str, Any] | str]:
        """Yield the probabilities of every step, then the response, and texts of comments while nothing happens."""
        async for event in self._events():
            if isinstance(event, Preview):
                shown = {
                    name: [{"value": value, "probability": round(one, 4)} for value, one in labels.items()]
                    for name, labels in event.labels.items()
                }
                yield {"object": "decision.preview", "step": event.step, "questions": shown}
            elif event is None:
                yield describe_wait(self.service.worker, (ticket for ticket, _ in self._tickets.values()))
        yield {"object": "decision", **self._write()}


def prepare_decision(route: str, service: Service, raw: bytes) -> Callable[[], DecisionAnswer]:
    """Check a body of either dialect, which are told apart by `state` and `input`, and return what makes its answer.

    Raises Problem if it is refused.
    """
    kind: type[DecisionBody | SystemOneBody] = SystemOneBody if "state" in read_json(raw) else DecisionBody
    body, notes = read_body(raw, kind)
    service.check_model(body.model)
    given, questions = read_input(body), read_questions(body)
    options: DecideOptions = {name: getattr(body, name) for name in OPTIONS if getattr(body, name) is not None}  # type: ignore[assignment]  # the names are those of both
    try:
        if body.recipe is not None:
            options["recipe"] = service.offers.recipe(body.recipe)
        plan = DecisionPlan.prepare(service.engine, questions, **options)
        plan = replace(plan, base=replace(plan.base, notes=(*notes, *plan.base.notes)))
        job = plan.start(given)
    except ForetellError as error:
        raise problem_of(error, _name_param(error, body)) from None
    return lambda: DecisionAnswer(service, route, body, plan, job)


def _name_param(error: ForetellError, body: DecisionBody | SystemOneBody) -> str:
    """Return the parameter that an error is about."""
    given = (name for name in ("recipe", *OPTIONS) if getattr(body, name) is not None)
    return next((name for name in given if name in str(error)), "questions")

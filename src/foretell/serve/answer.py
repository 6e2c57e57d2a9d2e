"""Answers one request: follows its choices through the worker, as one response or as a stream of chunks."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from foretell.errors import ForetellError
from foretell.serve.bodies import ChatBody, CompletionBody
from foretell.serve.choice import Choice
from foretell.serve.dialects import Dialect, describe_draft, describe_work, envelope, usage_of
from foretell.serve.mailbox import Committed, Done, Draft, Event, Failed, Mailbox, Scores, wait_for_events
from foretell.serve.problems import Problem, problem_of
from foretell.serve.service import Run, Service
from foretell.serve.worker import Ticket, Worker

KEEP_ALIVE = 2.0  # seconds without an event after which a stream sends a comment
LOG = logging.getLogger("foretell.serve")


@dataclass
class Answer:
    """A request that is being answered. `close` drops what is not done."""

    service: Service
    dialect: Dialect
    body: ChatBody | CompletionBody
    choices: list[Choice]
    arrived: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.name = f"{self.dialect.prefix}-{secrets.token_hex(12)}"
        self._box = Mailbox()
        self._tickets: dict[int, Ticket] = {}
        self._queued = [0.0] * len(self.choices)

    def start(self) -> None:
        """Submit every choice. Raises Problem if the server is too busy."""
        self._submit(range(len(self.choices)))

    def _submit(self, indexes: Any) -> None:
        tickets = {
            index: self.service.ticket(self.body, self.choices[index], self._box, index, self.name) for index in indexes
        }
        self.service.worker.submit(*tickets.values())
        self._tickets |= tickets

    def close(self) -> None:
        """Drop the choices that are not done."""
        for ticket in self._tickets.values():
            self.service.worker.cancel(ticket)
        self._tickets.clear()

    @property
    def route(self) -> str:
        return self.dialect.route

    @property
    def streams(self) -> bool:
        return bool(self.body.stream)

    @property
    def passes(self) -> int:
        return sum(one.forwards for choice in self.choices for one in choice.completions)

    @property
    def tokens(self) -> int:
        return sum(choice.count for choice in self.choices)

    @property
    def recipe(self) -> str:
        return self.choices[0].recipe or str(self.choices[0].request.recipe)

    async def _events(self) -> AsyncIterator[tuple[int, Event] | None]:
        """Yield the events of all choices until all are done; None if nothing happens for a while.

        Raises Problem if a choice fails, and TimeoutError if the time is over.
        """

        def finished() -> bool:
            return all(choice.reason is not None for choice in self.choices)

        async for one in wait_for_events(self._box, self.service.limits.timeout, KEEP_ALIVE, finished):
            if one is not None:
                self._take(*one)
            yield one

    def _take(self, index: int, event: Event) -> None:
        """Note what an event changes. A window that leaves the text unfinished is followed by another."""
        choice = self.choices[index]
        if isinstance(event, Failed):
            raise problem_of_failure(event.error)
        if isinstance(event, Scores):
            choice.add_scores(event)
        if not isinstance(event, Done):
            return
        ticket = self._tickets.pop(index)
        self._queued[index] += max(0.0, time.perf_counter() - ticket.arrived - event.outcome.seconds)
        choice.recipe = event.recipe
        try:
            following = choice.finish_window(event.outcome)
        except ForetellError as error:  # e.g. the region's pattern takes too long in the final text
            raise problem_of(error) from None
        done = choice.completions[-1]
        self.service.metrics.count(done)
        if self.body.trace and done.trace is not None and len(choice.completions) == 1 and index == 0:
            self.service.keep_run(self.name, Run(done, event.outcome.request))
        if following is not None:
            self._submit([index])

    def _count_finished(self) -> None:
        self.service.metrics.count_tokens(self._prompt_tokens, self.tokens, self._queued)

    @property
    def _prompt_tokens(self) -> int:
        """Tokens of the prompts; choices of one prompt share it."""
        return sum(choice.completions[0].prompt_tokens for choice in self.choices[:: self.body.n or 1])

    def _work(self, index: int) -> dict[str, Any]:
        kept = self.name if self.body.trace and index == 0 else None
        return describe_work(self.choices[index], self._queued[index], kept)

    async def respond(self) -> dict[str, Any]:
        """Wait for all choices and return the response."""
        async for _ in self._events():
            pass
        self._count_finished()
        spelling, scored = self.service.engine.spelling, self.body.alternatives is not None
        listed = [
            self.dialect.choice(index, choice, spelling, scored=scored) for index, choice in enumerate(self.choices)
        ]
        work = [self._work(index) for index in range(len(self.choices))]
        return {
            **envelope(self.dialect, self.name, self.service.model, part=False),
            "choices": listed,
            "usage": usage_of(self.choices, self._prompt_tokens),
            "foretell": work[0] if len(work) == 1 else {"choices": work, **work[0]},
        }

    async def stream(self) -> AsyncIterator[dict[str, Any] | str]:
        """Yield chunks, and texts of comments that keep the connection open."""
        for index in range(len(self.choices)):
            yield self._chunk(self.dialect.delta(index, None, None, first=True))
        async for one in self._events():
            if one is None:
                yield describe_wait(self.service.worker, self._tickets.values())
                continue
            for chunk in self._chunks(*one):
                yield chunk
        self._count_finished()
        options = self.body.stream_options
        if options is not None and options.include_usage:
            usage = usage_of(self.choices, self._prompt_tokens)
            yield {**envelope(self.dialect, self.name, self.service.model, part=True), "choices": [], "usage": usage}

    def _chunks(self, index: int, event: Event) -> Iterator[dict[str, Any]]:
        choice = self.choices[index]
        if isinstance(event, Draft):
            draft = describe_draft(event, choice, self.arrived)
            yield self._chunk(self.dialect.delta(index, None, None), draft=draft)
        if isinstance(event, Committed) and (text := choice.stream(event.tokens)):
            yield self._chunk(self.dialect.delta(index, text, None))
        if isinstance(event, Done) and choice.reason is not None:
            if text := choice.finish_stream():
                yield self._chunk(self.dialect.delta(index, text, None))
            last = self.dialect.delta(index, None, choice.reason)
            if self.body.alternatives is not None:
                last["logprobs"] = self.dialect.scores(choice.scores, self.service.engine.spelling)
            yield self._chunk(last, foretell={**self._work(index), "text": choice.text})

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> dict[str, Any]:
        options = self.body.stream_options
        usage = {"usage": None} if options is not None and options.include_usage else {}
        start = envelope(self.dialect, self.name, self.service.model, part=True)
        return {**start, "choices": [choice], **usage, **extra}


def describe_wait(worker: Worker, tickets: Iterable[Ticket]) -> str:
    """Return the comment for a client while nothing happens: its place in the queue, if it waits there."""
    place = min((worker.place(ticket) for ticket in tickets), default=0)
    return f"queued {place}" if place else "keep-alive"


def problem_of_failure(error: Exception) -> Problem:
    """Return the problem that a client sees if its request failed; the message of a bug is not shown."""
    if isinstance(error, ForetellError):
        return problem_of(error)
    return Problem(500, "the model failed on this request; the server's log says why", code="model_error")

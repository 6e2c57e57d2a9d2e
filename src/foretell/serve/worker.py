"""The thread that decodes. It alone touches the scheduler; requests and cancellations reach it through a queue."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Literal

from foretell.certify.supervise import Supervisor, Task
from foretell.engine.completion import Completion, Failure
from foretell.engine.engine import Engine
from foretell.engine.options import RequestTemplate
from foretell.engine.outcome import FailedRequest, Observer, Outcome
from foretell.engine.prompt_files import FilePrompt
from foretell.engine.request import Request
from foretell.engine.scheduler import Scheduler
from foretell.errors import ForetellError
from foretell.serve.mailbox import Done, Event, Failed
from foretell.serve.problems import busy

LOG = logging.getLogger("foretell.serve")


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that the worker has accepted, and its state."""

    request: Request
    template: RequestTemplate
    put: Callable[[Event], None]  # receives its events, in the worker's thread
    observers: tuple[Observer, ...] = ()
    record: bool = False  # return a trace
    supervised: FilePrompt | None = None  # the prompt, if the supervisor decides how it is decoded
    arrived: float = field(default_factory=time.perf_counter)
    kind: Hashable = None  # what it is counted as, while it is in the worker
    number: int | None = None  # of the scheduler
    task: Task | None = None  # of the supervisor


class Worker:
    """Decodes requests in its own thread, all through one scheduler."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_batch: int = 8,
        max_waiting: int = 256,
        max_groups: int = 16,
        supervisor: Supervisor | None = None,
        report: Callable[[Supervisor, Sequence[object]], None] | None = None,
    ) -> None:
        self.engine, self.supervisor, self._report = engine, supervisor, report
        self.max_batch, self.max_waiting, self.max_groups = max_batch, max_waiting, max_groups
        self._commands: SimpleQueue[tuple[Literal["submit", "cancel", "stop"], Ticket | None]] = SimpleQueue()
        self.waiting: Sequence[int] = ()  # numbers of the requests that the scheduler has not started
        self._lock = threading.Lock()
        self._kinds: Counter[Hashable] = Counter()  # of requests that wait or run
        self._tickets: dict[int, Ticket] = {}  # by the scheduler's number
        self._moved = time.perf_counter()  # when the last step ended, or the first request arrived
        self._scheduler = self._make_scheduler()
        self._thread = threading.Thread(target=self._run, name="foretell-decode", daemon=True)

    def _make_scheduler(self) -> Scheduler:
        engine = self.engine
        return Scheduler(
            engine.model, engine.codec.end_ids, self.max_batch, device=engine.device, spelling=engine.spelling
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Finish everything that was submitted, in `seconds` at most."""
        self._commands.put(("stop", None))
        if self._thread.ident is not None:
            self._thread.join(seconds)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def load(self) -> int:
        """The number of requests that wait or run."""
        return self._kinds.total()

    @property
    def places(self) -> int:
        """The number of requests that may wait or run."""
        return self.max_waiting + self.max_batch

    @property
    def stalled(self) -> float:
        """Seconds since the last step ended; 0 if there is nothing to decode."""
        return time.perf_counter() - self._moved if self.load else 0.0

    def place(self, ticket: Ticket) -> int:
        """Return a request's place in the queue, from 1; 0 if it is being decoded."""
        waiting = self.waiting
        return waiting.index(ticket.number) + 1 if ticket.number in waiting else 0

    def submit(self, *tickets: Ticket) -> None:
        """Queue requests, all of them or none. Raises Problem if the server is too busy for them."""
        with self._lock:
            if self.load + len(tickets) > self.places:
                raise busy(
                    f"{self.load} requests are waiting or running, and at most {self.max_waiting} may wait", "busy"
                )
            kinds = {ticket.request.kind for ticket in tickets}
            if len(kinds | self._kinds.keys()) > max(self.max_groups, len(self._kinds)):
                raise busy(
                    f"requests of {len(self._kinds)} different recipes and windows are being decoded, and at most "
                    f"{self.max_groups} are allowed; use a recipe that other requests use, or try again later",
                    "too_many_recipes",
                )
            if not self.load:
                self._moved = time.perf_counter()
            for ticket in tickets:
                self._count(ticket)
        for ticket in tickets:
            self._commands.put(("submit", ticket))

    def cancel(self, ticket: Ticket) -> None:
        """Drop a request before the next step, if it is not done. Its mailbox receives nothing more."""
        self._commands.put(("cancel", ticket))

    def _count(self, ticket: Ticket) -> None:
        ticket.kind = ticket.request.kind
        self._kinds[ticket.kind] += 1

    def _forget(self, ticket: Ticket) -> None:
        with self._lock:
            self._kinds[ticket.kind] -= 1
            if self._kinds[ticket.kind] <= 0:
                del self._kinds[ticket.kind]

    def _run(self) -> None:
        self.engine.use_threads()  # of this thread
        stopping = False
        while True:
            while not self._commands.empty() or not (self._scheduler.busy or stopping):
                what, ticket = self._commands.get()
                if ticket is None:
                    stopping = True
                elif what == "submit":
                    self._admit(ticket)
                else:
                    self._drop(ticket)
            if not self._scheduler.busy:
                return
            try:
                finished = self._scheduler.step()
            except Exception as error:
                LOG.exception("the model failed; requests that were running fail, the others are decoded")
                self._recover(error)
                continue
            finally:
                self._moved = time.perf_counter()
            for one in finished:
                self._finish(one)
            self.waiting = self._scheduler.waiting if self.load > self.max_batch else ()

    def _admit(self, ticket: Ticket) -> None:
        """Give a request to the scheduler, and its audits too."""
        if ticket.supervised is None or self.supervisor is None:
            self._schedule(ticket)
            return
        answer, *audits = self.supervisor.plan(ticket.supervised)
        ticket.task = answer
        ticket.template = answer.template
        ticket.request = replace(ticket.request, recipe=answer.template.recipe)
        ticket.record |= answer.template.trace
        self._schedule(ticket)
        for task in audits:
            request = replace(ticket.request, recipe=task.template.recipe)
            extra = Ticket(request, task.template, _ignore, record=task.template.trace, task=task)
            with self._lock:
                self._count(extra)
            self._schedule(extra)

    def _schedule(self, ticket: Ticket) -> None:
        try:
            ticket.number = self._scheduler.submit(ticket.request, *ticket.observers, record=ticket.record)
        except ForetellError as error:  # e.g. the model has no cache
            self._end(ticket, Failed(error))
            return
        self._tickets[ticket.number] = ticket

    def _drop(self, ticket: Ticket) -> None:
        if ticket.number is None or self._tickets.get(ticket.number) is not ticket:
            return  # it is done; after a failure, its number may be another request's
        if ticket.task is not None and self.supervisor is not None and self.supervisor.awaits(ticket.task):
            return  # an audit needs its result, and later audits wait for it
        self._scheduler.cancel(ticket.number)
        del self._tickets[ticket.number]
        self._forget(ticket)

    def _finish(self, one: Outcome | FailedRequest) -> None:
        ticket = self._tickets.pop(one.ticket)
        self._end(ticket, Failed(one.error) if isinstance(one, FailedRequest) else self._done(ticket, one))

    def _done(self, ticket: Ticket, outcome: Outcome) -> Event:
        return Done(outcome, str(outcome.request.recipe), ticket.template.notes)

    def _end(self, ticket: Ticket, event: Event) -> None:
        """Deliver the last event of a request, and tell the supervisor."""
        ticket.put(event)
        if ticket.task is not None and self.supervisor is not None:
            events = self.supervisor.record(ticket.task, self._result(ticket, event))
            if events and self._report is not None:
                self._report(self.supervisor, events)
        self._forget(ticket)

    def _result(self, ticket: Ticket, event: Event) -> Completion | Failure:
        if isinstance(event, Failed):
            error = event.error if isinstance(event.error, ForetellError) else ForetellError(str(event.error))
            return Failure(error)
        assert isinstance(event, Done), "the last event of a request"
        assert ticket.task is not None, "it is supervised"
        try:
            return self.engine.complete(event.outcome, ticket.task.one.prompt, ticket.template)
        except ForetellError as error:
            return Failure(error)

    def _recover(self, error: Exception) -> None:
        """Fail the requests that were running, and continue with those that waited, on a new scheduler."""
        running, tickets = set(self._scheduler.running), self._tickets
        self._scheduler, self._tickets = self._make_scheduler(), {}
        for number, ticket in sorted(tickets.items()):
            if number in running:
                self._end(ticket, Failed(error))
            else:
                self._schedule(ticket)


def _ignore(_: Event) -> None:
    """Ignore an event that nobody reads."""

"""Continuous batching: requests join a batch as soon as a slot is free, and leave it when they are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from foretell.engine.group import Group, Waiting
from foretell.engine.outcome import FailedRequest, Observer, Outcome, Usage
from foretell.engine.request import Request, lay_out
from foretell.engine.trace import Recorder
from foretell.errors import RequestError, whole
from foretell.loop.protocols import Denoiser
from foretell.loop.spelling import Spelling
from foretell.recipes.recipe import Recipe


@dataclass(slots=True)
class Scheduler:
    """`max_batch` slots for requests of any recipe. Requests of one `Request.kind` form a group and share a batch.

    A free slot goes to the group of the request that has waited longest. The group chooses which of its requests
    takes it, by `lookahead` and `patience`, so that prompts of similar length share a batch. Groups with running
    requests take turns of one step each.
    """

    model: Denoiser
    end_ids: tuple[int, ...] = ()
    max_batch: int = 8
    record: bool = False  # observe every position and return traces
    device: torch.device | str = "cpu"
    lookahead: int = 64  # requests that are compared by the padding they add; 1: first in, first out
    patience: int = 32  # how often a request may be passed over
    spelling: Spelling | None = None  # how tokens are written, for recipes that find the answer in the text
    submitted: int = field(default=0, init=False)
    _groups: dict[tuple[Recipe, int], Group] = field(default_factory=dict, init=False)
    _queue: deque[Group] = field(default_factory=deque, init=False)  # one entry per waiting request
    _turns: deque[Group] = field(default_factory=deque, init=False)  # groups with rows, the next one first
    _usage_of_removed: Usage = field(default=Usage(), init=False)  # of rows that have been removed

    def __post_init__(self) -> None:
        whole("max_batch", self.max_batch, 1, error=RequestError)
        whole("lookahead", self.lookahead, 1, error=RequestError)
        whole("patience", self.patience, 0, error=RequestError)

    @property
    def waiting(self) -> list[int]:
        """Tickets of the waiting requests."""
        return sorted(one.ticket for group in self._groups.values() for one in group.waiting)

    @property
    def running(self) -> list[int]:
        """Tickets of the running requests."""
        return sorted(row.ticket for group in self._turns for row in group.rows)

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._turns)

    @property
    def usage(self) -> Usage:
        """Columns of all passes so far."""
        return sum((group.usage(range(len(group.rows))) for group in self._turns), self._usage_of_removed)

    @property
    def size(self) -> int:
        """The number of waiting and running requests."""
        return len(self._queue) + sum(len(group.rows) for group in self._turns)

    def submit(self, request: Request, *observers: Observer, record: bool = False) -> int:
        """Queue a request, at any time between two steps. Returns its ticket; `observers` see each of its steps.

        `record` returns a trace of this request, also if the scheduler does not record all of them.
        """
        kind = request.kind
        if kind not in self._groups:
            if request.recipe.cache.stores:
                self.model.new_cache(0, 0)  # raises here, and not at the first step, if the model has no cache
            self._groups[kind] = Group(kind[0])
        group = self._groups[kind]
        recorder = Recorder(request) if self.record or record else None
        watching = observers if recorder is None else (recorder.observe, *observers)
        group.waiting.append(Waiting(self.submitted, request, watching, recorder))
        self._queue.append(group)
        self.submitted += 1
        return self.submitted - 1

    def cancel(self, ticket: int) -> bool:
        """Drop a waiting or running request between two steps. Returns false if there is none with this ticket."""
        for group in self._groups.values():
            for place, one in enumerate(group.waiting):
                if one.ticket == ticket:
                    del group.waiting[place]
                    del self._queue[[at for at, other in enumerate(self._queue) if other is group][place]]
                    self._drop_if_empty(group)
                    return True
            for index, row in enumerate(group.rows):
                if row.ticket == ticket:
                    self._remove(group, [index])
                    return True
        return False

    def run(self, requests: Iterable[Request] = ()) -> Iterator[Outcome]:
        """Decode all requests, yielding outcomes in the order of completion. Raises the error of one that fails."""
        for request in requests:
            self.submit(request)
        while self.busy:
            for done in self.step():
                if isinstance(done, FailedRequest):
                    raise done.error
                yield done

    def step(self) -> list[Outcome | FailedRequest]:
        """Admit waiting requests, run one step of one group, and return the requests that are done or have failed."""
        self._admit()
        if not self._turns:
            return []
        group = self._turns[0]
        self._turns.rotate(-1)
        outcomes = group.take_step(self.model)
        if outcomes:
            self._remove(group, outcomes)
        return list(outcomes.values())

    def _admit(self) -> None:
        joining: dict[int, Group] = {}
        for _ in range(min(len(self._queue), self.max_batch - len(self.running))):
            group = self._queue.popleft()
            group.admit_one(self.lookahead, self.patience)
            joining[id(group)] = group
        for group in joining.values():
            if group.state is None:
                self._turns.append(group)
            group.join(lay_out(group.joining, self.model.mask_id, self.end_ids, self.device, self.spelling))

    def _remove(self, group: Group, going: Collection[int]) -> None:
        self._usage_of_removed += group.usage(going)
        group.remove(going)
        if not group.rows:
            self._turns.remove(group)
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: Group) -> None:
        """Drop a group without requests, and its cache with it."""
        if not group.rows and not group.waiting:
            self._groups = {kind: one for kind, one in self._groups.items() if one is not group}

"""Requests that can share a batch: a queue of waiting requests, and one state for the running ones."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from foretell.engine.outcome import FailedRequest, Observer, Outcome, Row, Usage, outcome_of, usage_of
from foretell.engine.request import Request
from foretell.engine.trace import Recorder
from foretell.errors import RowsFailedError
from foretell.loop.decode import denoise_step
from foretell.loop.passes import StepPlan
from foretell.loop.protocols import Denoiser
from foretell.loop.state import DecodeState
from foretell.recipes.recipe import Recipe


@dataclass(slots=True)
class Waiting:
    """A request in the queue."""

    ticket: int
    request: Request
    observers: tuple[Observer, ...] = ()
    recorder: Recorder | None = None
    passed: int = 0  # how often a later one was taken first


@dataclass(slots=True, eq=False)
class Group:
    """Requests of one kind. Their rows share a state, and nothing else."""

    recipe: Recipe
    waiting: list[Waiting] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    state: DecodeState | None = None
    ahead: StepPlan | None = None  # of the next step; None after rows have joined or left

    def admit_one(self, lookahead: int, patience: int) -> None:
        """Move one of the first `lookahead` waiting requests to the rows: the one that adds the least padding.

        The first one has been passed over most often; after `patience` times it is taken regardless of its padding.
        """
        near = self.waiting[:lookahead]
        at = 0
        if self.rows and near[0].passed < patience:
            widest = max(len(row.request.prompt) for row in self.rows)
            sizes = [len(one.request.prompt) for one in near]
            # The padding of a full pass with request i, up to a constant.
            at = min(range(len(near)), key=lambda i: max(widest, sizes[i]) * (len(self.rows) + 1) - sizes[i])
        for one in near[:at]:
            one.passed += 1
        chosen = self.waiting.pop(at)
        self.rows.append(Row(chosen.ticket, chosen.request, time.perf_counter(), chosen.observers, chosen.recorder))

    @property
    def joining(self) -> list[Request]:
        """Requests of the rows that the state does not hold yet."""
        return [row.request for row in self.rows[0 if self.state is None else len(self.state.window) :]]

    def join(self, fresh: DecodeState) -> None:
        """Add the state of the `joining` requests to that of the batch."""
        self.state, self.ahead = fresh if self.state is None else self.state.join(fresh), None

    def take_step(self, model: Denoiser) -> dict[int, Outcome | FailedRequest]:
        """Denoise all rows once. Returns the outcomes of the rows that are done, by their place in the batch.

        If rows fail, returns only these. The others repeat the step without them, from the same state.
        """
        assert self.state is not None, "a group that takes a step has a state"
        try:
            step = denoise_step(model, self.state, self.recipe, self.ahead)
        except RowsFailedError as failed:
            return {index: FailedRequest(self.rows[index].ticket, error) for index, error in failed.rows.items()}
        self.state, self.ahead = step.after, step.ahead
        watched = tuple(index for index, row in enumerate(self.rows) if row.observers)
        if len(watched) < len(self.rows):
            step = replace(step, watched=watched)  # so that observing a row costs the others nothing
        for index in watched:
            self.rows[index].observe(step, index)
        done = [index for index, over in enumerate(step.ahead.finished) if over]
        # A settled row is done unless its commit is checked, so `settled` is copied to the host only in these cases.
        if done or self.recipe.verify.passes:
            for index, settled in enumerate(step.settled.tolist()):
                if settled:
                    self.rows[index].settle(step, index)
        return {index: outcome_of(index, self.rows[index], step) for index in done}

    def remove(self, going: Collection[int]) -> None:
        """Remove rows, move the last ones to their places, and cut off columns that are only padding now."""
        assert self.state is not None, "rows to remove have a state"
        count = len(self.rows) - len(going)
        movers = [index for index in range(count, len(self.rows)) if index not in going]
        keep = [movers.pop() if index in going else index for index in range(count)]
        self.rows = [self.rows[index] for index in keep]
        self.ahead = None
        if not keep:
            self.state = None
            return
        widest = max(len(row.request.prompt) for row in self.rows)
        kept = self.state.keep(keep)
        self.state = kept.trim(widest) if widest < kept.prompt_length else kept

    def usage(self, rows: Collection[int]) -> Usage:
        """Return the columns that some rows have taken so far."""
        return Usage() if self.state is None else usage_of(list(rows), self.state, self.recipe.guidance > 0)

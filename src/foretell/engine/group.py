"""Requests that can share a batch: those that wait, in line, and those in flight, in one state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from foretell.decode import Step
from foretell.engine.outcome import Outcome, Row, Usage, outcome_of, usage_of
from foretell.layout import Request
from foretell.recipe import Recipe
from foretell.state import DecodeState


@dataclass(slots=True)
class Waiting:
    """A request in line."""

    ticket: int
    request: Request
    passed: int = 0  # how often a later one was taken first


@dataclass(slots=True, eq=False)
class Group:
    """Requests of one kind. Their rows share a state, and nothing else."""

    recipe: Recipe
    waiting: list[Waiting] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    state: DecodeState | None = None

    def call(self, lookahead: int, patience: int, *, record: bool) -> None:
        """Make a row of one request in line: of the first `lookahead`, the one that adds the least padding.

        The first in line has been passed over most often; after `patience` times it is its turn, whatever it adds.
        """
        near = self.waiting[:lookahead]
        at = 0
        if self.rows and near[0].passed < patience:
            widest = max(len(row.request.prompt) for row in self.rows)
            sizes = [len(one.request.prompt) for one in near]
            # The padded columns of a full pass with it, up to what is the same for all.
            at = min(range(len(near)), key=lambda i: max(widest, sizes[i]) * (len(self.rows) + 1) - sizes[i])
        for one in near[:at]:
            one.passed += 1
        chosen = self.waiting.pop(at)
        self.rows.append(Row.start(chosen.ticket, chosen.request, record=record))

    @property
    def unseated(self) -> list[Request]:
        """Requests of the rows that the state does not hold yet."""
        return [row.request for row in self.rows[0 if self.state is None else len(self.state.step) :]]

    def seat(self, fresh: DecodeState) -> None:
        """Take the laid out `unseated` rows into the state."""
        if self.state is None:
            self.state = fresh
        else:
            self.state.join(fresh)

    def observe(self, taken: Step) -> dict[int, Outcome]:
        """Keep what will be told of a step; what became of the rows that are done, by their place in the batch."""
        assert self.state is not None, "a group that took a step has a state"
        for index, row in enumerate(self.rows):
            if row.recorder is not None:
                row.recorder.observe(taken, index)
        done = [index for index, over in enumerate(self.state.finished) if over]
        # A row that settles is done, unless its commit is looked over: otherwise there is nothing to ask the device.
        if done or self.recipe.verify.passes:
            for index, settled in enumerate(taken.settled.tolist()):
                if settled:
                    self.rows[index].settle(taken, index)
        return {index: outcome_of(index, self.rows[index], self.state, taken) for index in done}

    def leave(self, going: Collection[int]) -> None:
        """Rows leave the batch, the last ones take their places, and columns that nobody uses any more are cut off."""
        assert self.state is not None, "rows that leave have a state"
        count = len(self.rows) - len(going)
        movers = [index for index in range(count, len(self.rows)) if index not in going]
        keep = [movers.pop() if index in going else index for index in range(count)]
        self.rows = [self.rows[index] for index in keep]
        if not keep:
            self.state = None
            return
        self.state.keep(keep)
        widest = max(len(row.request.prompt) for row in self.rows)
        if widest < self.state.prompt_length:
            self.state.trim(widest)

    def usage(self, rows: Collection[int]) -> Usage:
        """What some rows have taken by now."""
        return Usage() if self.state is None else usage_of(list(rows), self.state, self.recipe.guidance > 0)

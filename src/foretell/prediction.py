"""Beliefs computed from logits, only at the positions that are read, each statistic only if a policy asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from foretell.errors import RequestError
from foretell.protocols import Change, Precise, Readout, Sample
from foretell.reductions import Reductions, in_chunks
from foretell.state import DecodeState, picked

FEW = 64  # positions whose logits exist together where nobody looks at more than their tokens

Exact = Callable[[Tensor], Tensor]  # token ids [n, k] -> logits [n, k]


@dataclass(frozen=True, slots=True)
class Part:
    """One forward pass of a step, not yet turned into logits."""

    rows: Tensor  # [b] rows of the state, in rising order
    query: Tensor  # [b, w] window position of every asked column
    real: Tensor | None  # [b, w] false on columns that only make the pass a rectangle; None: the whole window in order
    readout: Readout

    def of(self, grid: Tensor) -> Tensor:
        """What a bool [B, N] says of each asked column; false where that is none of the row's own. [b, w]"""
        if self.real is None:
            return picked(grid, self.rows)
        return grid[self.rows[:, None], self.query] & self.real

    def where(self, at_row: Tensor, at: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """The state's row and position, of `rows` rows, behind pass rows `at_row` and asked columns `at`. [n] each"""
        row = at_row if len(self.rows) == rows else self.rows[at_row]
        return row, at if self.real is None else self.query[at_row, at]


class Reading:
    """The logits of n positions, and what policies want to know of them."""

    def __init__(self, row: Tensor, position: Tensor, tokens: Tensor, logits: Reductions, exact: Exact | None) -> None:
        self.row, self.position, self.tokens = row, position, tokens  # [n]
        self.logits: Reductions | None = logits  # of [n, V]; None once they are let go
        self.exact = exact  # logits of few tokens in float32, where the model's own are rounder than that

    @property
    def _logits(self) -> Reductions:
        assert self.logits is not None, "a statistic is asked for before the logits are let go"
        return self.logits

    @cached_property
    def best(self) -> tuple[Tensor, Tensor]:
        """The two highest logits of each position. [n] each"""
        winners = self._logits.best_two  # [n, 2]
        if self.exact is None:
            first, second = self._logits.of(winners).unbind(-1)
            return first, second
        first, second = self.exact(winners).unbind(-1)
        return first, torch.minimum(first, second)  # tokens that rounding made equal may change places

    @cached_property
    def confidence(self) -> Tensor:
        chosen = self._logits.of(self.tokens[:, None]).squeeze(-1)
        return (chosen - self._logits.normaliser).exp()

    @cached_property
    def gap(self) -> Tensor:
        return self.best[0] - self.best[1]

    @cached_property
    def margin(self) -> Tensor:
        normaliser = self._logits.normaliser
        return (self.best[0] - normaliser).exp() - (self.best[1] - normaliser).exp()

    @cached_property
    def entropy(self) -> Tensor:
        return self._logits.entropy

    def measure(self, statistic: str, change: Change) -> Tensor:
        """A statistic of changed logits, computed for a few positions at a time. [n]"""

        def of(values: Tensor, tokens: Tensor) -> Tensor:
            few = Reading(self.row, self.position, tokens, Reductions(change(values)), None)
            return torch.as_tensor(getattr(few, statistic))

        return in_chunks(of, self._logits.values, self.tokens)

    def settle(self) -> Reading:
        """Work out every statistic and let the logits go."""
        for name in ("entropy", "confidence", "gap", "margin"):  # the entropy's pass brings the normaliser along
            getattr(self, name)
        self.logits = self.exact = None
        return self


class Prediction:
    """Implements `protocols.LogitBeliefs`: what the passes of one step say, spread over all B rows and N positions.

    A position that was not read keeps its old draft and reports the least possible certainty, so that nothing
    unseen can be unmasked or trigger an early commit. A filled position proposes what it holds.
    """

    def __init__(self, parts: list[Part], state: DecodeState, sample: Sample, whole: Callable[[Tensor], Part]) -> None:
        self._parts, self._state, self._sample = parts, state, sample
        self._whole = whole  # a pass over all of some rows [b]
        self._blank = state.blank
        self._seen = torch.zeros_like(self._blank)  # [B, N]
        self._readings: list[Reading] = []
        self._released = False
        self._change: Change | None = None  # of the logits, before they are measured
        self._spreads: dict[str, Tensor] = {}  # statistics asked for since the last reading
        self.tokens = torch.where(self._blank, state.draft, state.window)  # [B, N]

    def read(self, part: Part, at_row: Tensor, at: Tensor) -> None:
        """Make beliefs of the asked columns `at` [n] of a pass's rows `at_row` [n], which have none yet."""
        if len(at):
            self._readings.append(self._reading(part, at_row, at))

    def skim(self, wanted: Tensor, *, measure: bool) -> None:
        """The same for those of `wanted` [B, N] that were computed and have no beliefs yet.

        No policy asks anything of them but the token, and their number grows with the window. So their logits come a
        few positions at a time and are not kept. `measure` them for observers; without it their certainty stays the
        least possible.
        """
        for part, at_row, at in self._fresh(wanted):
            for few in zip(torch.split(at_row, FEW), torch.split(at, FEW), strict=True):
                if measure:
                    self._readings.append(self._reading(part, *few).settle())
                else:
                    self._reading(part, *few)  # its name would keep the logits until the next ones are there

    def complete(self, wanted: Tensor, *, measure: bool) -> bool:
        """`skim` the positions `wanted` [B, N], with a pass of their own where they were not computed.

        Returns whether it took that pass.
        """
        self.skim(wanted, measure=measure)
        lacking = wanted & ~self._seen
        rows = lacking.any(dim=1).nonzero().squeeze(1)
        if len(rows):
            self._parts.append(self._whole(rows))
            self.skim(lacking, measure=measure)
        return len(rows) > 0

    def _fresh(self, wanted: Tensor) -> Iterator[tuple[Part, Tensor, Tensor]]:
        """The pass rows and asked columns, [n] each, of positions that have no beliefs yet, pass by pass."""
        fresh = wanted & ~self._seen
        for part in self._parts:
            at_row, at = part.of(fresh).nonzero(as_tuple=True)
            if len(at):
                yield part, at_row, at

    def _reading(self, part: Part, at_row: Tensor, at: Tensor) -> Reading:
        self._spreads.clear()
        values = part.readout(at_row, at)
        # A mask is never an answer, and proposing one would loop forever. As a slice: a head may have no column for it.
        values[:, self._state.mask_id : self._state.mask_id + 1] = -torch.inf
        row, position = part.where(at_row, at, len(self._blank))
        self._seen[row, position] = True
        logits = Reductions(values)
        proposed = self._sample(logits, self._state, row, position)
        tokens = torch.where(self._blank[row, position], proposed, self.tokens[row, position])
        self.tokens[row, position] = tokens
        exact = None
        if values.dtype in (torch.bfloat16, torch.float16) and isinstance(part.readout, Precise):
            exact = partial(part.readout.precise, at_row, at)
        return Reading(row, position, tokens, logits, exact)

    def release(self) -> None:
        """Let go of the passes and their logits. Statistics that someone has asked for by now stay."""
        self._parts, self._readings, self._released = [], [], True

    def transform(self, change: Change) -> Prediction:
        """The same proposals, with the statistics of changed logits; without logits, the least possible certainty."""
        other, before = copy(self), self._change
        other._change = change if before is None else lambda values: change(before(values))
        other._spreads = {}
        return other

    @property
    def confidence(self) -> Tensor:
        """Probability of the proposed token. [B, N]"""
        return self._spread("confidence", 0.0)

    @property
    def gap(self) -> Tensor:
        """Confidence gap g: best logit minus second best (Eq. 4). [B, N]"""
        return self._spread("gap", 0.0)

    @property
    def margin(self) -> Tensor:
        """Best probability minus second best. [B, N]"""
        return self._spread("margin", 0.0)

    @property
    def entropy(self) -> Tensor:
        """Shannon entropy in nats. [B, N]"""
        return self._spread("entropy", torch.inf)

    @torch.inference_mode()  # observers read after the step, and the logits are inference tensors
    def _spread(self, statistic: str, fill: float) -> Tensor:
        if statistic not in self._spreads:
            if self._released:
                raise RequestError(f"the {statistic} of a step must be read before the next step; its logits are gone")
            change, readings = self._change, self._readings
            if change is None:
                values = [getattr(reading, statistic) for reading in readings]
            else:
                readings = [reading for reading in readings if reading.logits is not None]
                values = [reading.measure(statistic, change) for reading in readings]
            dtype = values[0].dtype if values else torch.float32
            full = torch.full(self.tokens.shape, fill, dtype=dtype, device=self.tokens.device)
            for reading, value in zip(readings, values, strict=True):
                full[reading.row, reading.position] = value
            self._spreads[statistic] = full
        return self._spreads[statistic]

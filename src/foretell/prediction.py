"""Beliefs computed from logits, only at the positions that are read, each statistic only if a policy asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from foretell.errors import RequestError
from foretell.protocols import Precise, Readout, Sample
from foretell.reductions import best_two, entropy, log_sum_exp
from foretell.state import DecodeState, picked

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

    def __init__(self, row: Tensor, position: Tensor, logits: Tensor, tokens: Tensor, exact: Exact | None) -> None:
        self.row, self.position, self.tokens = row, position, tokens  # [n]
        self.logits = logits  # [n, V]
        self.exact = exact  # logits of few tokens in float32, where the model's own are rounder than that

    @cached_property
    def best(self) -> tuple[Tensor, Tensor]:
        """The two highest logits of each position. [n] each"""
        winners = best_two(self.logits)  # [n, 2]
        if self.exact is None:
            first, second = self._precise(self.logits.gather(-1, winners)).unbind(-1)
            return first, second
        first, second = self.exact(winners).unbind(-1)
        return first, torch.minimum(first, second)  # tokens that rounding made equal may change places

    @cached_property
    def normaliser(self) -> Tensor:
        """log sum exp of the logits: no matrix of probabilities. [n]"""
        return log_sum_exp(self.logits)

    @cached_property
    def confidence(self) -> Tensor:
        chosen = self.logits.gather(-1, self.tokens[:, None]).squeeze(-1)
        return (self._precise(chosen) - self.normaliser).exp()

    @cached_property
    def gap(self) -> Tensor:
        return self.best[0] - self.best[1]

    @cached_property
    def margin(self) -> Tensor:
        return (self.best[0] - self.normaliser).exp() - (self.best[1] - self.normaliser).exp()

    @cached_property
    def entropy(self) -> Tensor:
        return entropy(self.logits)

    def _precise(self, values: Tensor) -> Tensor:
        return values.to(torch.promote_types(values.dtype, torch.float32))


class Prediction:
    """Implements `protocols.Beliefs`: what the passes of one step say, spread over all B rows and N positions.

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
        self._spreads: dict[str, Tensor] = {}  # statistics asked for since the last reading
        self.tokens = torch.where(self._blank, state.draft, state.window)  # [B, N]

    def read(self, wanted: Tensor) -> None:
        """Make beliefs of the positions `wanted` [B, N] that have none yet and were computed."""
        fresh = wanted & ~self._seen
        for part in self._parts:
            at_row, at = part.of(fresh).nonzero(as_tuple=True)
            if len(at):
                self._read(part, at_row, at)

    def complete(self, wanted: Tensor) -> bool:
        """Make beliefs of the positions `wanted` [B, N], with a pass of their own where they were not computed.

        Returns whether it took that pass.
        """
        self.read(wanted)
        lacking = wanted & ~self._seen
        rows = lacking.any(dim=1).nonzero().squeeze(1)
        if len(rows):
            self._parts.append(self._whole(rows))
            self.read(lacking)
        return len(rows) > 0

    def _read(self, part: Part, at_row: Tensor, at: Tensor) -> None:
        self._spreads.clear()
        logits = part.readout(at_row, at)
        logits[:, self._state.mask_id] = -torch.inf  # a mask is never an answer, and proposing one would loop forever
        row, position = part.where(at_row, at, len(self._blank))
        self._seen[row, position] = True
        proposed = self._sample(logits, self._state, row, position)
        tokens = torch.where(self._blank[row, position], proposed, self.tokens[row, position])
        self.tokens[row, position] = tokens
        exact = None
        if logits.dtype in (torch.bfloat16, torch.float16) and isinstance(part.readout, Precise):
            exact = partial(part.readout.precise, at_row, at)
        self._readings.append(Reading(row, position, logits, tokens, exact))

    def release(self) -> None:
        """Let go of the passes and their logits. Statistics that someone has asked for by now stay."""
        self._parts, self._readings, self._released = [], [], True

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
            values = [getattr(reading, statistic) for reading in self._readings]
            dtype = values[0].dtype if values else torch.float32
            full = torch.full(self.tokens.shape, fill, dtype=dtype, device=self.tokens.device)
            for reading, value in zip(self._readings, values, strict=True):
                full[reading.row, reading.position] = value
            self._spreads[statistic] = full
        return self._spreads[statistic]

"""Beliefs computed from logits, only at the positions that are read, each statistic only if a policy asks for it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from foretell.errors import RequestError
from foretell.loop.checks import ask_sample
from foretell.loop.parts import Meters, Work, rows_of
from foretell.loop.passes import SlotGroup
from foretell.loop.protocols import Change, Precise, Readout, Sample
from foretell.loop.reductions import Reductions, map_chunks
from foretell.loop.view import StateView
from foretell.loop.wrappers import select_logits

FEW = 64  # positions whose logits exist at the same time if only their tokens are read

Exact = Callable[[Tensor], Tensor]  # token ids [n, k] -> logits [n, k]
STATISTICS = ("entropy", "confidence", "gap", "margin")  # the entropy's pass over the logits also gives the normaliser


@dataclass(frozen=True, slots=True)
class PassOutput:
    """The output of one forward pass, not yet turned into logits."""

    rows: Tensor  # [b] rows of the state, in rising order
    query: Tensor  # [b, w] window position of every wanted column
    real: Tensor | None  # [b, w] false on columns that only pad the rectangle; None: the whole window, in order
    readout: Readout

    def of(self, grid: Tensor) -> Tensor:
        """Return the values of a bool [B, N] at each wanted column; false at columns that only pad. [b, w]"""
        if self.real is None:
            return rows_of(grid, self.rows)
        return grid[self.rows[:, None], self.query] & self.real

    def locate(self, at_row: Tensor, at: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the state's rows and positions of pass rows `at_row` and wanted columns `at`. [n] each"""
        row = at_row if len(self.rows) == rows else self.rows[at_row]
        return row, at if self.real is None else self.query[at_row, at]


class SlotReading:
    """What a pass says about the slots of one group. Observers read it until the next step."""

    def __init__(self, output: PassOutput, group: SlotGroup) -> None:
        self._output, self._group = output, group
        row, at = group.row.repeat_interleave(group.at.shape[1]), group.at.flatten()
        logits = select_logits(output.readout, row, at, group.automaton.tokens)
        self.logits = logits.view(*group.at.shape, -1)  # [R, W, K] of the automaton's tokens

    @torch.inference_mode()
    def of(self, row: int, offset: int) -> Tensor:
        """Return the logits [W, K] of one slot, on the host."""
        return self.logits[self._group.keys.index((row, offset))].cpu()

    @torch.inference_mode()
    def normalisers(self, row: int, offset: int) -> Tensor:
        """Return log sum exp over the whole vocabulary at each position of one slot, on the host. [W]"""
        place = self._group.keys.index((row, offset))
        at = self._group.at[place]
        return self._output.readout(self._group.row[place].expand_as(at), at).float().logsumexp(dim=1).cpu()


class Readings:
    """The logits of n positions, and the statistics that policies read."""

    def __init__(self, row: Tensor, position: Tensor, tokens: Tensor, logits: Reductions, exact: Exact | None) -> None:
        self.row, self.position, self.tokens = row, position, tokens  # [n]
        self.logits: Reductions | None = logits  # of [n, V]; None once they are freed
        self.exact = exact  # computes a few tokens' logits in float32; None if not needed or not supported

    @property
    def _logits(self) -> Reductions:
        assert self.logits is not None, "a statistic is read before the logits are freed"
        return self.logits

    @cached_property
    def best(self) -> tuple[Tensor, Tensor]:
        """The two highest logits of each position. [n] each"""
        winners = self._logits.best_two  # [n, 2]
        if self.exact is None:
            first, second = self._logits.of(winners).unbind(-1)
            return first, second
        first, second = self.exact(winners).unbind(-1)
        return first, torch.minimum(first, second)  # tokens that rounding made equal may be in the wrong order

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
        """Compute a statistic of changed logits, a few positions at a time. [n]"""

        def of(values: Tensor, tokens: Tensor) -> Tensor:
            few = Readings(self.row, self.position, tokens, Reductions(change(values)), None)
            return torch.as_tensor(getattr(few, statistic))

        return map_chunks(of, self._logits.values, self.tokens)

    def free_logits(self) -> Readings:
        """Compute every statistic and free the logits."""
        for name in STATISTICS:
            getattr(self, name)
        self.logits = self.exact = None
        return self


class StepBeliefs:
    """Implements `protocols.LogitBeliefs`: the results of one step's passes, for all B rows and N positions.

    A position that was not read keeps its old draft and reports the least possible certainty, so that nothing
    unseen can be filled or trigger an early commit. A filled position proposes its own token.
    """

    def __init__(
        self,
        outputs: list[PassOutput],
        state: StateView,
        sample: Sample,
        run_everything: Callable[[Tensor, Meters], tuple[PassOutput, Meters]],
        work: Work,
    ) -> None:
        self._outputs, self._state, self._sample = outputs, state, sample
        self._run_everything = run_everything  # a pass over all columns of some rows [b]
        self.work = work  # of the passes so far
        self._seen = torch.zeros_like(state.blank)  # [B, N] positions whose token was read
        self._measured = torch.zeros_like(state.blank)  # [B, N] positions whose statistics can be read
        self._unusable = torch.zeros_like(state.blank)  # [B, N] positions whose best logit is not finite
        self._readings: list[Readings] = []
        self._released = False
        self._change: Change | None = None  # applied to the logits before they are measured
        self._spreads: dict[str, Tensor] = {}  # statistics asked for since the last reading
        self.tokens = torch.where(state.blank, state.draft, state.window)  # [B, N]
        self.slots: dict[tuple[int, int], SlotReading] = {}  # by row and offset of the slot

    def read(self, output: PassOutput, at_row: Tensor, at: Tensor) -> None:
        """Form beliefs about the wanted columns `at` [n] of a pass's rows `at_row` [n], which have none yet."""
        if len(at):
            self._readings.append(self._read(output, at_row, at, measure=True))

    def read_slots(self, output: PassOutput, group: SlotGroup) -> None:
        """Form beliefs about the slots of a group, of which only allowed tokens have logits."""
        reading = SlotReading(output, group)
        width, automaton = group.at.shape[1], group.automaton
        at_row, at = group.row.repeat_interleave(width), group.at.flatten()
        row, position = output.locate(at_row, at, len(self.tokens))
        scores = automaton.rank(reading.logits, self._state.window[row, position].view(-1, width))
        values = scores.new_full((len(at), automaton.vocabulary), -torch.inf)
        values.scatter_(1, automaton.tokens.expand(len(at), -1), scores.flatten(0, 1))
        self._readings.append(self._note(row, position, values, None, measure=True))
        self.slots.update(dict.fromkeys(group.keys, reading))

    def read_tokens(self, wanted: Tensor, *, measure: bool = False) -> None:
        """Form beliefs about the positions `wanted` [B, N] that were computed and not read yet.

        Policies read only the tokens there, and the number of positions grows with the window. So their logits are
        computed for a few positions at a time and freed. Their certainty stays the least possible, unless an observer
        wants to `measure` it.
        """
        for output in self._outputs:
            fresh = wanted & ~(self._measured if measure else self._seen)
            at_row, at = output.of(fresh).nonzero(as_tuple=True)
            for few in zip(torch.split(at_row, FEW), torch.split(at, FEW), strict=True) if len(at) else ():
                if measure:
                    self._readings.append(self._read(output, *few, measure=True).free_logits())
                else:
                    self._read(output, *few, measure=False)  # assigning it would keep the logits in memory too long

    def read_or_compute(self, wanted: Tensor, *, measure: bool = False) -> bool:
        """Form beliefs about `wanted` [B, N], with one more pass for rows in which some were not computed.

        Returns whether it took that pass.
        """
        self.read_tokens(wanted, measure=measure)
        lacking = wanted & ~self._seen
        rows = lacking.any(dim=1).nonzero().squeeze(1)
        if len(rows):
            output, meters = self._run_everything(rows, self.work.meters)
            self.work = self.work._replace(meters=meters)
            self._outputs.append(output)
            self.read_tokens(lacking, measure=measure)
        return len(rows) > 0

    def _read(self, output: PassOutput, at_row: Tensor, at: Tensor, *, measure: bool) -> Readings:
        values = output.readout(at_row, at)
        # A proposed mask would make the loop endless. A slice is used because a head may have no column for the mask.
        values[:, self._state.mask_id : self._state.mask_id + 1] = -torch.inf
        row, position = output.locate(at_row, at, len(self.tokens))
        exact = None
        if values.dtype in (torch.bfloat16, torch.float16) and isinstance(output.readout, Precise):
            exact = partial(output.readout.precise, at_row, at)
        return self._note(row, position, values, exact, measure=measure)

    def _note(self, row: Tensor, position: Tensor, values: Tensor, exact: Exact | None, *, measure: bool) -> Readings:
        """Propose tokens from the logits `values` [n, V] of some positions [n]."""
        self._spreads.clear()
        state = self._state
        self._seen[row, position] = True
        if measure:
            self._measured[row, position] = True
        logits = Reductions(values)
        self._unusable[row, position] = ~logits.top.isfinite()
        proposed = ask_sample(self._sample, logits, state, row, position)
        tokens = torch.where(state.blank[row, position], proposed, self.tokens[row, position])
        self.tokens[row, position] = tokens
        return Readings(row, position, tokens, logits, exact)

    @torch.inference_mode()
    def log_probabilities(self, row: int, positions: Tensor) -> Tensor:
        """Return the log probability of every token at `positions` [n] of a row, in rising order. [n, V]

        The step must have computed these positions, and the next step frees them.
        """
        left = torch.zeros_like(self._seen)
        left[row, positions] = True
        parts: list[tuple[Tensor, Tensor]] = []
        for output in self._outputs:
            at_row, at = output.of(left).nonzero(as_tuple=True)
            if len(at):
                _, position = output.locate(at_row, at, len(self.tokens))
                left[row, position] = False
                values = output.readout(at_row, at).float()
                values[:, self._state.mask_id : self._state.mask_id + 1] = -torch.inf
                parts.append((position, values.log_softmax(dim=-1)))
        order = torch.cat([position for position, _ in parts]).argsort()
        return torch.cat([values for _, values in parts])[order]

    @property
    def failed(self) -> Tensor:
        """[B] rows for which no token can be chosen at a position, because its best logit is not finite."""
        return self._unusable.any(dim=1)

    def release(self) -> None:
        """Free the passes and their logits. Statistics that were read by now stay."""
        self._outputs, self._readings, self._released = [], [], True
        self.slots.clear()

    def transform(self, change: Change) -> StepBeliefs:
        """Return the same proposals with the statistics of changed logits; the least certainty once they are freed."""
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
            readings, values = self._measure(statistic)
            dtype = values[0].dtype if values else torch.float32
            full = torch.full(self.tokens.shape, fill, dtype=dtype, device=self.tokens.device)
            for one, value in zip(readings, values, strict=True):
                full[one.row, one.position] = value
            self._spreads[statistic] = full
        return self._spreads[statistic]

    def _measure(self, statistic: str) -> tuple[list[Readings], list[Tensor]]:
        """Return the readings that have a statistic, and its values."""
        if self._change is None:
            return self._readings, [getattr(one, statistic) for one in self._readings]
        kept = [one for one in self._readings if one.logits is not None]
        return kept, [one.measure(statistic, self._change) for one in kept]

"""What a policy may know about a batch: the parts of its state, flattened, and values derived from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foretell.loop.parts import KVStore, Ledger, Meters, Recheck, Rows, Text
from foretell.loop.shapes import check_grid
from foretell.loop.spelling import Spelling


@dataclass(frozen=True, eq=False)
class StateView:
    """B sequences, each at its own step, with recipes that differ only in their budget. Policies only read it.

    Derived values are computed once per state.
    """

    rows: Rows
    text: Text
    ledger: Ledger
    recheck: Recheck
    meters: Meters
    store: KVStore | None = None

    # ---- the parts, flat ----

    @property
    def pinned(self) -> Tensor:
        """[B, N] true on tokens that the request fixed in advance."""
        return self.rows.pinned

    @property
    def declared(self) -> Tensor:
        """[B, N] true on the answer region that the request's layout declares."""
        return self.rows.declared

    @property
    def scratch(self) -> Tensor:
        """[B, N] positions that need not be filled: all outside the slots, in rows that have slots."""
        return self.rows.scratch

    @property
    def valid(self) -> Tensor:
        """[B, L] false on padding."""
        return self.rows.valid

    @property
    def budget(self) -> Tensor:
        """[B] T_max."""
        return self.rows.budget

    @property
    def seed(self) -> Tensor:
        """[B] randomness of the row."""
        return self.rows.seed

    @property
    def positions(self) -> Tensor:
        """0 .. N - 1."""
        return self.rows.positions

    @property
    def block_length(self) -> int:
        return self.rows.block_length

    @property
    def mask_id(self) -> int:
        return self.rows.mask_id

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return self.rows.end_ids

    @property
    def spelling(self) -> Spelling | None:
        """How tokens are written."""
        return self.rows.spelling

    @property
    def window(self) -> Tensor:
        """[B, N] the generated part of the canvas."""
        return self.text.window

    @property
    def draft(self) -> Tensor:
        """[B, N] what each position would hold if decoding stopped now."""
        return self.text.draft

    @property
    def unchanged(self) -> Tensor:
        """[B, N] number of consecutive steps for which the draft has been the same."""
        return self.text.unchanged

    @property
    def answer_age(self) -> Tensor:
        """[B] number of consecutive steps that found the answer in the same place."""
        return self.text.answer_age

    @property
    def step(self) -> Tensor:
        """[B] steps taken."""
        return self.text.step

    @property
    def length(self) -> int:
        """N, the number of generated positions."""
        return self.window.shape[1]

    @property
    def prompt_length(self) -> int:
        """Columns before the window, with padding."""
        return self.rows.prompt.shape[1]

    # ---- derived from them ----

    @cached_property
    def canvas(self) -> Tensor:
        """[B, L] prompt and window."""
        return torch.cat([self.rows.prompt, self.window], dim=1)

    @cached_property
    def blank(self) -> Tensor:
        """[B, N] positions that hold a mask."""
        return self.window == self.mask_id

    @cached_property
    def ended(self) -> Tensor:
        """[B, N] the end of the text (an end token with nothing pinned after it) and all after it."""
        ends = torch.zeros_like(self.pinned)
        for token in self.end_ids:
            ends |= self.window == token
        return (ends & ~self.rows.pinned_later).cumsum(dim=1) > 0

    @cached_property
    def masked(self) -> Tensor:
        """[B, N] masks that still matter: all of them, or those before the end of the text."""
        return self.blank & ~self.ended if self.rows.stop_at_eos else self.blank

    @cached_property
    def answer(self) -> Tensor:
        """[B, N] the answer region, without pinned positions, because they cannot change."""
        region = self.rows.region
        found = self.text.found if region.sought else check_grid(region, "a region", region(self), self.window.shape)
        return found & ~self.pinned

    @cached_property
    def checking(self) -> Tensor:
        """[B] rows whose early commit is being checked."""
        return self.recheck.left > 0

    @cached_property
    def done(self) -> Tensor:
        """[B] rows with nothing left to fill or to check."""
        return ~((self.masked & ~self.scratch).any(dim=1) | self.checking)

    @cached_property
    def last(self) -> Tensor:
        """[B] rows whose next step is the last one of their budget."""
        return self.step + 1 >= self.budget

    @cached_property
    def progress(self) -> Tensor:
        """[B] p = (T_max - t) / T_max: 0 before the first step, never 1 inside the loop."""
        return self.step / self.budget

    @cached_property
    def filled(self) -> Tensor:
        """[B] share of the window that is filled; it measures progress under parallel transfers."""
        return (~self.blank).float().mean(dim=1)

    @cached_property
    def block(self) -> Tensor:
        """[B] index of the leftmost block that still holds a mask."""
        return self.masked.int().argmax(dim=1) // self.block_length

    @cached_property
    def in_block(self) -> Tensor:
        """[B, N] positions of the current block, and of later blocks that are due by the same step.

        Later blocks are included only if blocks have deadlines and there are fewer steps than blocks.
        """
        block, mine = self.block[:, None], self.rows.blocks
        if not self.rows.paced:
            return mine == block
        return (mine == block) | ((mine > block) & (self.rows.deadlines <= self.step[:, None] + 1))

    @cached_property
    def eligible(self) -> Tensor:
        """[B, N] masks that may be filled now: those of the current block, without scratch in the last step."""
        return self.masked & self.in_block & ~(self.scratch & self.last[:, None])

    def due(self, block: Tensor) -> Tensor:
        """Return the step by which `block` ([B] or [B, N]) and all before it must be filled."""
        return self.rows.due(block)

"""The canvas being denoised, and everything a policy may want to know about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.derived import derived
from foretell.words import Words

EVER = torch.iinfo(torch.long).max


class KVStore(Protocol):
    """Keys and values of every canvas column, row-aligned with the `DecodeState` that it belongs to.

    Rows and columns come and go in place: a store is never shared by two states.
    """

    def view(self, rows: Tensor | None) -> KVStore:
        """The same storage seen through `rows` [b], or all of it in order; what is written there lands here."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, which come in this order from now on."""

    def grow(self, rows: int, columns: int) -> None:
        """Have so many rows and columns: blank rows are appended, blank columns prepended."""

    def trim(self, columns: int) -> None:
        """Drop so many columns at the left."""


class Plan(NamedTuple):
    """What the next forward pass looks at, row by row. What a policy reads is computed and seen in any case."""

    full: Tensor | None = None  # [B] rows that recompute everything visible; None is all of them
    query: Tensor | None = None  # [B, N] window positions recomputed by the other rows
    visible: Tensor | None = None  # [B, N] window positions that exist for this pass; None is all of them
    lead: bool = True  # whether a shifted model may compute the column before a query for filled positions too


@dataclass(slots=True)
class DecodeState:
    """B sequences at independent steps of recipes that differ in nothing but their budget.

    The only mutable object in the loop. Prompts are left-padded, so the window is the last N columns of every row.
    What is derived from the fields is computed once and then kept until one of them changes.
    """

    canvas: Tensor  # [B, L] token ids
    valid: Tensor  # [B, L] false on padding
    pinned: Tensor  # [B, N] true on tokens that the request fixed in advance
    answer: Tensor  # [B, N] true on the answer region
    draft: Tensor  # [B, N] what each position would hold if decoding stopped now
    unchanged: Tensor  # [B, N] consecutive steps for which that has stood
    stayed: Tensor  # [B] consecutive steps for which a sought answer has stood in one place; EVER for any other
    step: Tensor  # [B] refinement steps already taken
    budget: Tensor  # [B] T_max
    seed: Tensor  # [B] per-row randomness, so that batching never changes a result
    forwards: Tensor  # [B] passes that computed something of the row
    computed: Tensor  # [B] columns that these passes had to compute
    spent: Tensor  # [B] columns that they did compute: padding, and what fills a pass up to a rectangle, included
    cached_block: Tensor  # [B] block at the last full pass, -1 if the cache holds nothing of this row
    cached_step: Tensor  # [B] step of the last full pass
    held: Tensor  # [B, N] positions of which the cache holds keys and values
    current: Tensor  # [B, N] of those, the ones computed from the token that the position holds now
    hasty: Tensor  # [B, N] positions filled by an early commit
    checks: Tensor  # [B] passes left to look over an early commit
    # What all rows share stays what it is for the life of the state.
    block_length: int
    mask_id: int
    end_ids: tuple[int, ...] = ()  # tokens that end a text; the first one fills what is behind it
    stop_at_eos: bool = False  # whether masks behind the end of the text still count
    paced: bool = True  # whether blocks are due by their share of the budget; otherwise the budget is only a limit
    cache: KVStore | None = None
    words: Words | None = None  # how tokens are written, where an answer is looked for in the text
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # see `derived`

    @property
    def length(self) -> int:
        """N, the number of generated positions."""
        return self.draft.shape[1]

    @property
    def prompt_length(self) -> int:
        """Columns in front of the window, padding included."""
        return self.canvas.shape[1] - self.length

    @derived("pinned")
    def positions(self) -> Tensor:
        """0 .. N - 1."""
        return torch.arange(self.length, device=self.canvas.device)

    @derived("valid")
    def columns(self) -> Tensor:
        """0 .. L - 1."""
        return torch.arange(self.canvas.shape[1], device=self.canvas.device)

    @derived("pinned")
    def rows(self) -> Tensor:
        """0 .. B - 1."""
        return torch.arange(len(self.pinned), device=self.canvas.device)

    @derived("valid")
    def places(self) -> Tensor:
        """[B, L] place of each column in its own text, so that padding a row never moves it."""
        return (self.valid.cumsum(dim=1) - 1).clamp(min=0)

    @derived("valid")
    def prompt_sizes(self) -> Tensor:
        """[B] columns in front of the window that are no padding."""
        return self.valid[:, : self.prompt_length].sum(dim=1)

    @derived("canvas")
    def window(self) -> Tensor:
        """The generated part of the canvas, a view [B, N]."""
        return self.canvas[:, self.prompt_length :]

    @derived("canvas")
    def blank(self) -> Tensor:
        """Positions that hold a mask. [B, N]"""
        return self.window == self.mask_id

    @derived("pinned")
    def pinned_later(self) -> Tensor:
        """Positions with something pinned there or behind. [B, N]"""
        return self.pinned.flip(1).cumsum(dim=1).flip(1) > 0

    @derived("canvas", "pinned")
    def ended(self) -> Tensor:
        """Positions behind the end of the text: an end token with nothing pinned after it. [B, N]"""
        ends = torch.zeros_like(self.pinned)
        for token in self.end_ids:
            ends |= self.window == token
        return (ends & ~self.pinned_later).cumsum(dim=1) > 0

    @derived("canvas", "pinned")
    def masked(self) -> Tensor:
        """Masks that still matter: all of them, or those before the end of the text. [B, N]"""
        return self.blank & ~self.ended if self.stop_at_eos else self.blank

    @derived("checks")
    def checking(self) -> Tensor:
        """[B] rows that have committed early and look over what they wrote."""
        return self.checks > 0

    @derived("canvas", "pinned", "checks")
    def done(self) -> Tensor:
        """[B] rows with nothing left to fill or to look over."""
        return ~(self.masked.any(dim=1) | self.checking)

    @derived("canvas", "pinned", "checks")
    def finished(self) -> list[bool]:
        """`done`, where Python decides by it: asking costs a wait for the device, but only one."""
        return [bool(over) for over in self.done.tolist()]

    @derived("step", "budget")
    def progress(self) -> Tensor:
        """p = (T_max - t) / T_max: 0 before the first step, never 1 inside the loop. [B]"""
        return self.step / self.budget

    @derived("canvas")
    def filled(self) -> Tensor:
        """Share of the window no longer masked, the clock of adaptive transfer policies. [B]"""
        return (~self.blank).float().mean(dim=1)

    @derived("canvas", "pinned")
    def block(self) -> Tensor:
        """[B] index of the leftmost block that still holds a mask."""
        return self.masked.int().argmax(dim=1) // self.block_length

    @derived("pinned")
    def blocks(self) -> Tensor:
        """[1, N] the block of each position."""
        return (self.positions // self.block_length)[None]

    @derived("pinned", "budget")
    def deadlines(self) -> Tensor:
        """[B, N] the step by which each position's block must be filled."""
        return self.due(self.blocks)

    @derived("canvas", "pinned", "step", "budget")
    def in_block(self) -> Tensor:
        """[B, N] positions of the current block, and of later blocks that are due by the same step.

        The latter exist only where blocks keep to the budget and it has fewer steps than there are blocks.
        """
        block, mine = self.block[:, None], self.blocks
        if not self.paced:
            return mine == block
        return (mine == block) | ((mine > block) & (self.deadlines <= self.step[:, None] + 1))

    @derived("canvas", "pinned", "step", "budget")
    def eligible(self) -> Tensor:
        """Masks that may be filled now: those of the current block. [B, N]"""
        return self.masked & self.in_block

    def due(self, block: Tensor) -> Tensor:
        """The step by which `block` and everything before it must be filled: its share of the window.

        One block a row, [B], or several, [B, N].
        """
        end = ((block + 1) * self.block_length).clamp(max=self.length)
        budget = self.budget if block.dim() == 1 else self.budget[:, None]
        return (end * budget + self.length - 1) // self.length

    def look_over(self, settled: Tensor, commit: Tensor, doubted: Tensor, passes: int) -> None:
        """Grant `passes` to rows that settle now, and count one for rows that are looking over an earlier commit.

        What those `doubted` [B, N] is masked again, unless it is their last pass. A row is through once it has no
        doubts about anything, or no passes left to look again and to act on it.
        """
        at_it = self.checking
        granted = (self.budget - self.step - 1).clamp(max=passes)
        left = torch.where(settled, granted, (self.checks - 1).clamp(min=0))
        again = doubted & self.hasty & ~self.blank & (at_it & (left > 0))[:, None]
        through = at_it & ~again.any(dim=1) & ((left < 2) | ~self.blank.any(dim=1))
        self.checks = torch.where(through, 0, left)
        self.hasty = self.hasty | (settled[:, None] & commit)
        self.current = self.current & ~again
        self._write(self.window.masked_fill(again, self.mask_id))

    def reveal(self, unmask: Tensor, tokens: Tensor, alive: Tensor) -> Tensor:
        """Write `tokens` where `unmask` is true, and count the step for the rows that are `alive` [B].

        Returns all that was filled: behind an end of text, where nothing is computed, that is the end token.
        """
        self.step = self.step + alive
        stood = torch.where(tokens == self.draft, self.unchanged + 1, 0)
        self.unchanged = torch.where(alive[:, None], stood, self.unchanged)
        self.draft = torch.where(alive[:, None], tokens, self.draft)
        self.current = self.current & ~unmask
        self._write(torch.where(unmask, tokens, self.window))
        if not (self.stop_at_eos and self.end_ids):
            return unmask
        behind = self.blank & self.done[:, None]
        self._write(self.window.masked_fill(behind, self.end_ids[0]))
        self.draft = self.draft.masked_fill(behind, self.end_ids[0])
        return unmask | behind

    def _write(self, window: Tensor) -> None:
        """A new canvas, so that nothing derived from the old one is taken for its own."""
        self.canvas = torch.cat([self.canvas[:, : self.prompt_length], window], dim=1)

    def mark(self) -> dict[str, Tensor]:
        """What a step writes behind its forward passes, to come back to."""
        return {name: getattr(self, name) for name in _WRITTEN}

    def back(self, mark: dict[str, Tensor]) -> None:
        """As it was at the `mark`."""
        for name, value in mark.items():
            setattr(self, name, value)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with only these rows, in that order. A row may be repeated as long as there is no cache."""
        index = torch.tensor(rows, device=self.canvas.device)
        for name in PER_ROW:
            setattr(self, name, getattr(self, name)[index])
        if self.cache is not None:
            self.cache.keep(rows)

    def join(self, fresh: DecodeState) -> None:
        """Append the rows of a not yet started batch, with prompts padded to the wider of the two."""
        width = max(self.canvas.shape[1], fresh.canvas.shape[1])
        for each in (self, fresh):
            pad = (width - each.canvas.shape[1], 0)
            each.canvas, each.valid = F.pad(each.canvas, pad), F.pad(each.valid, pad, value=False)
        for name in PER_ROW:
            setattr(self, name, torch.cat([getattr(self, name), getattr(fresh, name)]))
        if self.cache is not None:
            self.cache.grow(*self.canvas.shape)

    def trim(self, prompt: int) -> None:
        """Have only `prompt` columns in front of the window; those cut off must be padding in every row."""
        cut = self.prompt_length - prompt
        self.canvas, self.valid = self.canvas[:, cut:], self.valid[:, cut:]
        if self.cache is not None:
            self.cache.trim(cut)


_SHARED = ("block_length", "mask_id", "end_ids", "stop_at_eos", "paced", "cache", "words", "kept")
_WRITTEN = ("canvas", "answer", "draft", "unchanged", "step", "current", "hasty", "checks")
PER_ROW = tuple(one.name for one in fields(DecodeState) if one.name not in _SHARED)


def picked(values: Tensor, rows: Tensor) -> Tensor:
    """`rows` [b] of `values` [B, ...]. They rise without repeating, so B of them are all, and nothing is copied."""
    return values if len(rows) == len(values) else values[rows]

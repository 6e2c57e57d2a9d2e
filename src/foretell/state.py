"""The canvas being denoised, and everything a policy may want to know about it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.words import Words


class KVStore(Protocol):
    """Keys and values of every canvas column, row-aligned with a `DecodeState`."""

    def view(self, rows: Tensor) -> KVStore:
        """The same storage seen through `rows`; what is written there lands here."""

    def select(self, rows: Tensor) -> KVStore:
        """A new store holding only `rows`."""

    def pad(self, rows: int, columns: int) -> KVStore:
        """A new store with blank rows appended and blank columns prepended."""


class Plan(NamedTuple):
    """What the next forward pass looks at, row by row. What a policy reads is computed and seen in any case."""

    full: Tensor  # [B] rows that recompute everything visible
    query: Tensor | None = None  # [B, N] window positions recomputed by the other rows
    visible: Tensor | None = None  # [B, N] window positions that exist for this pass; None is all of them


@dataclass(slots=True)
class DecodeState:
    """B sequences at independent steps of the same recipe. The only mutable object in the loop.

    Prompts are left-padded, so the window is the last N columns of every row.
    """

    canvas: Tensor  # [B, L] token ids
    valid: Tensor  # [B, L] false on padding
    pinned: Tensor  # [B, N] true on tokens that the request fixed in advance
    answer: Tensor  # [B, N] true on the answer region
    draft: Tensor  # [B, N] what each position would hold if decoding stopped now
    unchanged: Tensor  # [B, N] consecutive steps for which that has stood
    step: Tensor  # [B] refinement steps already taken
    seed: Tensor  # [B] per-row randomness, so that batching never changes a result
    forwards: Tensor  # [B] passes that computed something of the row
    computed: Tensor  # [B] columns that these passes computed, padding not counted
    cached_block: Tensor  # [B] block at the last full pass, -1 if the cache holds nothing of this row
    cached_step: Tensor  # [B] step of the last full pass
    held: Tensor  # [B, N] positions of which the cache holds keys and values
    current: Tensor  # [B, N] of those, the ones computed from the token that the position holds now
    hasty: Tensor  # [B, N] positions filled by an early commit
    checks: Tensor  # [B] passes left to look over an early commit
    budget: int  # T_max
    block_length: int
    mask_id: int
    end_ids: tuple[int, ...] = ()  # tokens that end a text; the first one fills what is behind it
    stop_at_eos: bool = False  # whether masks behind the end of the text still count
    cache: KVStore | None = None
    words: Words | None = None  # how tokens are written, where an answer is looked for in the text

    @property
    def length(self) -> int:
        """N, the number of generated positions."""
        return self.draft.shape[1]

    @property
    def prompt_length(self) -> int:
        """Columns in front of the window, padding included."""
        return self.canvas.shape[1] - self.length

    @property
    def positions(self) -> Tensor:
        """0 .. N - 1."""
        return torch.arange(self.length, device=self.canvas.device)

    @property
    def places(self) -> Tensor:
        """[B, L] place of each column in its own text, so that padding a row never moves it."""
        return (self.valid.cumsum(dim=1) - 1).clamp(min=0)

    @property
    def window(self) -> Tensor:
        """The generated part of the canvas, a view [B, N]."""
        return self.canvas[:, self.prompt_length :]

    @property
    def blank(self) -> Tensor:
        """Positions that hold a mask. [B, N]"""
        return self.window == self.mask_id

    @property
    def ended(self) -> Tensor:
        """Positions behind the end of the text: an end token with nothing pinned after it. [B, N]"""
        ends = torch.zeros_like(self.pinned)
        for token in self.end_ids:
            ends |= self.window == token
        pinned_later = self.pinned.flip(1).cumsum(dim=1).flip(1) > 0
        return (ends & ~pinned_later).cumsum(dim=1) > 0

    @property
    def masked(self) -> Tensor:
        """Masks that still matter: all of them, or those before the end of the text. [B, N]"""
        return self.blank & ~self.ended if self.stop_at_eos else self.blank

    @property
    def done(self) -> Tensor:
        """[B] rows with nothing left to fill or to look over."""
        return ~self.masked.any(dim=1) & (self.checks == 0)

    @property
    def checking(self) -> Tensor:
        """[B] rows that have committed early and look over what they wrote."""
        return self.checks > 0

    @property
    def progress(self) -> Tensor:
        """p = (T_max - t) / T_max: 0 before the first step, never 1 inside the loop. [B]"""
        return self.step / self.budget

    @property
    def filled(self) -> Tensor:
        """Share of the window no longer masked, the clock of adaptive transfer policies. [B]"""
        return (~self.blank).float().mean(dim=1)

    @property
    def block(self) -> Tensor:
        """[B] index of the leftmost block that still holds a mask."""
        return self.masked.int().argmax(dim=1) // self.block_length

    @property
    def in_block(self) -> Tensor:
        """[B, N] positions of the current block, and of later ones that a budget of fewer steps than blocks
        leaves no step of their own."""
        block, mine = self.block[:, None], self.positions // self.block_length
        return (mine == block) | ((mine > block) & (self.due(mine) <= self.step[:, None] + 1))

    @property
    def eligible(self) -> Tensor:
        """Masks that may be filled now: those of the current block. [B, N]"""
        return self.masked & self.in_block

    def due(self, block: Tensor) -> Tensor:
        """The step by which `block` and everything before it must be filled: its share of the window. [B]"""
        end = ((block + 1) * self.block_length).clamp(max=self.length)
        return (end * self.budget + self.length - 1) // self.length

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
        self.hasty |= settled[:, None] & commit
        self.window.masked_fill_(again, self.mask_id)
        self.current &= ~again

    def reveal(self, unmask: Tensor, tokens: Tensor, alive: Tensor) -> Tensor:
        """Write `tokens` where `unmask` is true, and count the step for the rows that are `alive` [B].

        Returns all that was filled: behind an end of text, where nothing is computed, that is the end token.
        """
        self.step += alive
        stood = torch.where(tokens == self.draft, self.unchanged + 1, 0)
        self.unchanged = torch.where(alive[:, None], stood, self.unchanged)
        self.draft = torch.where(alive[:, None], tokens, self.draft)
        self.window.copy_(torch.where(unmask, tokens, self.window))
        self.current &= ~unmask
        if not (self.stop_at_eos and self.end_ids):
            return unmask
        behind = self.blank & self.done[:, None]
        self.window.masked_fill_(behind, self.end_ids[0])
        self.draft = self.draft.masked_fill(behind, self.end_ids[0])
        return unmask | behind

    def select(self, rows: Tensor) -> DecodeState:
        """A state holding only `rows`, in that order."""
        per_row: dict[str, Any] = {name: getattr(self, name)[rows] for name in _PER_ROW}
        return replace(self, **per_row, cache=self.cache and self.cache.select(rows))

    def admit(self, fresh: DecodeState) -> DecodeState:
        """This batch with the rows of a not yet started one appended, prompts padded to the wider of the two."""
        width = max(self.canvas.shape[1], fresh.canvas.shape[1])
        pair = self._widen(width), fresh._widen(width)
        per_row: dict[str, Any] = {name: torch.cat([getattr(state, name) for state in pair]) for name in _PER_ROW}
        grown = self.cache and self.cache.pad(len(fresh.step), width - self.canvas.shape[1])
        return replace(self, **per_row, cache=grown)

    def _widen(self, width: int) -> DecodeState:
        pad = (width - self.canvas.shape[1], 0)
        return replace(self, canvas=F.pad(self.canvas, pad), valid=F.pad(self.valid, pad, value=False))


_SHARED = ("budget", "block_length", "mask_id", "end_ids", "stop_at_eos", "cache", "words")
_PER_ROW = tuple(field.name for field in fields(DecodeState) if field.name not in _SHARED)

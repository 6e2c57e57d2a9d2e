"""The parts of a decode state, each a value of tensors with one row per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.loop.slots import Slot
from foretell.loop.spelling import Spelling

ALWAYS = torch.iinfo(torch.long).max  # the age of an answer whose place is known from the start


class KVStore(Protocol):
    """Keys and values of every canvas column, row-aligned with the state that it belongs to.

    It is the only part of decoding that is changed in place, so two batches never share a store.
    """

    def view(self, rows: Tensor | None) -> KVStore:
        """Return the same storage for `rows` [b], or for all rows in order. Writes to the view change the storage."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, and put them in this order."""

    def grow(self, rows: int, columns: int) -> None:
        """Resize to `rows` x `columns`: append empty rows, prepend empty columns."""

    def trim(self, columns: int) -> None:
        """Drop this many columns on the left."""


class Plan(NamedTuple):
    """What the next forward pass computes for each row. Positions that a policy reads are always computed."""

    full: Tensor | None = None  # [B] rows that recompute everything visible; None means all rows
    query: Tensor | None = None  # [B, N] window positions recomputed by the other rows
    visible: Tensor | None = None  # [B, N] window positions that exist for this pass; None means all positions
    lead: bool = True  # whether a shifted model also computes the column before a filled position of the query


class AnswerRegion(Protocol):
    """The part of `protocols.Region` that a state needs."""

    @property
    def sought(self) -> bool: ...

    def __call__(self, state: Any) -> Tensor: ...  # a StateView, which is made of these parts


@dataclass(frozen=True, eq=False)
class Rows:
    """The constants of B requests. Prompts are left-padded, so windows are aligned."""

    prompt: Tensor  # [B, L - N] token ids
    valid: Tensor  # [B, L] false on padding
    pinned: Tensor  # [B, N] true on tokens that the request fixed in advance
    declared: Tensor  # [B, N] true on the answer region that the request's layout declares
    slotted: Tensor  # [B, N] true on the positions of slots
    budget: Tensor  # [B] T_max
    seed: Tensor  # [B] randomness of the row, so that batching never changes a result
    slots: tuple[tuple[Slot, ...], ...]  # of each row
    # Shared by all rows:
    region: AnswerRegion
    block_length: int
    mask_id: int
    end_ids: tuple[int, ...] = ()  # tokens that end a text; the first one fills what comes after the end
    stop_at_eos: bool = False  # whether masks after the end of the text are ignored
    paced: bool = True  # whether each block has a deadline within the budget; otherwise the budget is only a limit
    spelling: Spelling | None = None  # how tokens are written, for regions that are found in the text

    @cached_property
    def index(self) -> Tensor:
        """0 .. B - 1."""
        return torch.arange(len(self.pinned), device=self.pinned.device)

    @cached_property
    def positions(self) -> Tensor:
        """0 .. N - 1."""
        return torch.arange(self.pinned.shape[1], device=self.pinned.device)

    @cached_property
    def columns(self) -> Tensor:
        """0 .. L - 1."""
        return torch.arange(self.valid.shape[1], device=self.pinned.device)

    @cached_property
    def text_positions(self) -> Tensor:
        """[B, L] position of each column in its own text, so that padding a row never moves it."""
        return (self.valid.cumsum(dim=1) - 1).clamp(min=0)

    @cached_property
    def prompt_sizes(self) -> Tensor:
        """[B] prompt tokens, without padding."""
        return self.valid[:, : self.prompt.shape[1]].sum(dim=1)

    @cached_property
    def window_sizes(self) -> Tensor:
        """[B] positions of the window, without padding."""
        return self.valid[:, self.prompt.shape[1] :].sum(dim=1)

    @cached_property
    def pinned_later(self) -> Tensor:
        """[B, N] positions with a pinned token or a slot there or after them."""
        return (self.pinned | self.slotted).flip(1).cumsum(dim=1).flip(1) > 0

    @cached_property
    def scratch(self) -> Tensor:
        """[B, N] positions outside the slots of rows that have slots. They need not be filled."""
        return self.slotted.any(dim=1, keepdim=True) & ~self.slotted & ~self.pinned

    @cached_property
    def slotted_on_host(self) -> Tensor | None:
        """[B, N] the same as `slotted`, in host memory; None if no row has slots."""
        if not any(self.slots):
            return None
        grid = torch.zeros(self.slotted.shape, dtype=torch.bool)
        for row, slots in enumerate(self.slots):
            for slot in slots:
                grid[row, slot.offset : slot.end] = True
        return grid

    @cached_property
    def blocks(self) -> Tensor:
        """[1, N] the block of each position."""
        return (self.positions // self.block_length)[None]

    @cached_property
    def deadlines(self) -> Tensor:
        """[B, N] the step by which each position's block must be filled."""
        return self.due(self.blocks)

    def due(self, block: Tensor) -> Tensor:
        """Return the step by which `block` ([B] or [B, N]) and all before it must be filled."""
        length = self.pinned.shape[1]
        end = ((block + 1) * self.block_length).clamp(max=length)
        budget = self.budget if block.dim() == 1 else self.budget[:, None]
        return (end * budget + length - 1) // length

    def widen(self, prompt: int) -> Rows:
        """Pad or cut the prompts to `prompt` columns; only padding may be cut."""
        by = (prompt - self.prompt.shape[1], 0)
        return replace(self, prompt=F.pad(self.prompt, by), valid=F.pad(self.valid, by, value=False))


@dataclass(frozen=True, eq=False)
class Text:
    """The tokens of the window, and the draft that the last step proposed."""

    window: Tensor  # [B, N] token ids
    draft: Tensor  # [B, N] what each position would hold if decoding stopped now
    unchanged: Tensor  # [B, N] number of consecutive steps for which the draft has been the same
    found: Tensor  # [B, N] the answer region that the last step found, if it is searched for in the text
    answer_age: Tensor  # [B] number of consecutive steps that found the answer in the same place; ALWAYS if declared
    step: Tensor  # [B] steps taken


@dataclass(frozen=True, eq=False)
class Ledger:
    """What the key-value store holds, and when it was computed."""

    cached: Tensor  # [B, N] positions whose keys and values are stored
    fresh: Tensor  # [B, N] stored positions that were computed from the token they hold now
    block: Tensor  # [B] block at the last full pass; -1 if nothing of the row is stored
    step: Tensor  # [B] step of the last full pass


@dataclass(frozen=True, eq=False)
class Recheck:
    """The state of the checks of early commits."""

    committed: Tensor  # [B, N] positions filled by an early commit
    left: Tensor  # [B] passes left


@dataclass(frozen=True, eq=False)
class Meters:
    """The work done per row. [B] each"""

    forwards: Tensor  # passes that computed something of the row
    needed: Tensor  # columns that these passes had to compute
    computed: Tensor  # columns that they did compute, with padding

    def add(self, rows: Tensor, needed: Tensor, computed: int) -> Meters:
        """Count a pass over `rows` [b] of `computed` columns, of which each row `needed` [b]."""
        return Meters(
            self.forwards.index_add(0, rows, torch.ones_like(rows)),
            self.needed.index_add(0, rows, needed),
            self.computed.index_add(0, rows, torch.full_like(rows, computed)),
        )


class Work(NamedTuple):
    """What the passes of a step hand to the next state."""

    ledger: Ledger
    meters: Meters
    store: KVStore | None


class Move(NamedTuple):
    """What a step does to the text, apart from the tokens."""

    fill: Tensor  # [B, N] masks to fill
    commits: Tensor  # [B] rows that fill everything left
    forced: Tensor  # [B, N] masks filled only because the budget ends: the transfer would have waited
    remask: Tensor | None  # [B, N] positions of an early commit to mask again
    recheck: Recheck


Part = Rows | Text | Ledger | Recheck | Meters


def tensors_of(part: Part) -> dict[str, Tensor]:
    """Return the tensors of a part by name; each has one row per request."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def rows_of(values: Tensor, rows: Tensor) -> Tensor:
    """Return `rows` [b] of `values` [B, ...]. Rows are sorted and unique, so B rows are all rows: nothing is copied."""
    return values if len(rows) == len(values) else values[rows]

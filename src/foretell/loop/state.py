"""The state of a batch: a value that every step replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from foretell.loop.parts import Move, Work, tensors_of
from foretell.loop.slots import Slot
from foretell.loop.view import StateView

PARTS = ("rows", "text", "ledger", "recheck", "meters")


@dataclass(frozen=True, eq=False)
class DecodeState(StateView):
    """A `StateView` with methods that return changed states."""

    def apply(self, move: Move, tokens: Tensor, work: Work) -> DecodeState:
        """Return the state after `move`, with `tokens` [B, N] as proposed. The only place that creates a new text."""
        alive = ~self.done
        window = torch.where(move.fill, tokens, self.window)
        fresh = work.ledger.fresh & ~move.fill
        if move.remask is not None:
            window, fresh = window.masked_fill(move.remask, self.mask_id), fresh & ~move.remask
        unchanged = torch.where(tokens == self.draft, self.unchanged + 1, 0)
        text = replace(
            self.text,
            window=window,
            draft=torch.where(alive[:, None], tokens, self.draft),
            unchanged=torch.where(alive[:, None], unchanged, self.unchanged),
            step=self.step + alive,
        )
        work = work._replace(ledger=replace(work.ledger, fresh=fresh))
        return replace(self, text=text, recheck=move.recheck, **work._asdict())._fill_after_end()

    def _fill_after_end(self) -> DecodeState:
        """Write the end token where nothing is computed: after the end of a text that is done."""
        if not (self.rows.stop_at_eos and self.end_ids):
            return self
        after = self.blank & self.done[:, None] & ~self.scratch
        window, draft = (each.masked_fill(after, self.end_ids[0]) for each in (self.window, self.draft))
        return self.with_text(window=window, draft=draft)

    def with_text(self, **changes: Tensor) -> DecodeState:
        """Return a copy with some tensors of its text replaced."""
        return replace(self, text=replace(self.text, **changes))

    def keep(self, rows: Sequence[int]) -> DecodeState:
        """Return a state of only these rows, in this order. A row may be repeated as long as there is no store."""
        index = torch.tensor(rows, device=self.window.device)
        if self.store is not None:
            self.store.keep(rows)
        kept = self._with_tensors(
            {part: {name: value[index] for name, value in mine.items()} for part, mine in self._tensors().items()}
        )
        return kept._with_slots([self.rows.slots[row] for row in rows])

    def join(self, fresh: DecodeState) -> DecodeState:
        """Append the rows of a batch that has not started. Prompts are padded to the wider of the two."""
        width = max(self.prompt_length, fresh.prompt_length)
        wide, others = self._widen(width), fresh._widen(width)._tensors()
        joined = wide._with_tensors(
            {
                part: {name: torch.cat([value, others[part][name]]) for name, value in mine.items()}
                for part, mine in wide._tensors().items()
            }
        )
        if self.store is not None:
            self.store.grow(*joined.valid.shape)
        return joined._with_slots([*self.rows.slots, *fresh.rows.slots])

    def trim(self, prompt: int) -> DecodeState:
        """Return a state with `prompt` columns before the window; removed columns must be padding in every row."""
        if self.store is not None:
            self.store.trim(self.prompt_length - prompt)
        return self._widen(prompt)

    def _widen(self, prompt: int) -> DecodeState:
        return self if prompt == self.prompt_length else replace(self, rows=self.rows.widen(prompt))

    def _with_slots(self, slots: Sequence[tuple[Slot, ...]]) -> DecodeState:
        return replace(self, rows=replace(self.rows, slots=tuple(slots)))

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of every part, by part and name."""
        return {part: tensors_of(getattr(self, part)) for part in PARTS}

    def _with_tensors(self, tensors: dict[str, dict[str, Tensor]]) -> DecodeState:
        changed: dict[str, Any] = {part: replace(getattr(self, part), **mine) for part, mine in tensors.items()}
        return replace(self, **changed)

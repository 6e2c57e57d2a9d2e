"""What a decoding says about its slots: logits are copied from each step until a position is filled."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.engine.request import Layout
from foretell.loop.decode import Step
from foretell.loop.slots import Slot


class SlotReader:
    """Observes one slot. Each position keeps the logits of the step that filled it, or of the latest step."""

    def __init__(self, slot: Slot, mass: bool) -> None:
        self.slot = slot
        self.logits = torch.zeros(slot.length, len(slot.automaton.tokens))  # [W, K]
        self.normalisers = torch.zeros(slot.length) if mass else None  # [W] over the whole vocabulary
        self.gap = float("inf")  # the smallest of those with which positions were filled
        self.steps = 0  # that have been observed

    def observe(self, step: Step, row: int) -> None:
        """Copy what a step says about the masks of the slot."""
        place = slice(self.slot.offset, self.slot.end)
        masked = step.before.blank[row, place].cpu()
        if not masked.any():
            return
        reading = step.beliefs.slots[row, self.slot.offset]
        self.steps += 1
        self.logits = torch.where(masked[:, None], reading.of(row, self.slot.offset), self.logits)
        filled = step.filled[row, place].cpu()
        if not filled.any():
            return
        self.gap = min(self.gap, float(step.beliefs.gap[row, place].cpu()[filled].min()))
        if self.normalisers is not None:
            found = reading.normalisers(row, self.slot.offset)
            self.normalisers = torch.where(filled, found, self.normalisers)

    @property
    def log_probabilities(self) -> Tensor:
        """Log probabilities [W, K] over the whole vocabulary, if normalisers were read."""
        assert self.normalisers is not None, "the reader was asked for the mass"
        return self.logits - self.normalisers[:, None]


class CanvasReader:
    """Implements `engine.outcome.Observer` for all slots of one request."""

    def __init__(self, layout: Layout, *, mass: bool = True) -> None:
        self.slots = tuple(SlotReader(slot, mass) for slot in layout.slots)
        self.thinking: float | None = None  # smallest confidence with which a mask outside of the slots was filled
        self._outside = torch.ones(layout.length, dtype=torch.bool)  # [N]
        for slot in layout.slots:
            self._outside[slot.offset : slot.end] = False

    def __call__(self, step: Step, row: int) -> None:
        for slot in self.slots:
            slot.observe(step, row)
        filled = step.filled[row].cpu() & self._outside
        if filled.any():
            least = float(step.beliefs.confidence[row].cpu()[filled].min())
            self.thinking = least if self.thinking is None else min(self.thinking, least)

"""A closed-form denoiser without weights, for tests: hashed logits that become more certain as the canvas fills."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import ModelError, RequestError
from foretell.loop.noise import scramble, to_unit
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Inputs

_NOISE = 4.0  # spread of the random part of the logits
_DOUBT, _TRUST = 1.0, 13.0  # lead of the favoured token on an almost empty canvas, and on a full one


@dataclass(frozen=True, slots=True)
class Toy:
    """Implements `protocols.Denoiser` as a pure function of the visible tokens and their positions.

    Every column favours one token, chosen by its position and in some columns by its left neighbour, so that drafts
    change while neighbours are still masked. The lead of that token grows with the filled share of the text, faster at
    some positions than at others. Noise that depends on all visible tokens is added. Padding, other rows and the order
    of rows change no bit of the result.
    """

    vocab: int = 64
    mask_id: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.vocab < 3:
            raise RequestError(f"a toy's vocabulary is {self.vocab}; it must have at least 3 tokens")
        if not 0 <= self.mask_id < self.vocab:
            raise RequestError(f"a toy's mask_id is {self.mask_id}; it must be from 0 to {self.vocab - 1}")

    def __call__(self, inputs: Inputs) -> Signal:
        computed = torch.zeros_like(inputs.attend).scatter(1, inputs.columns, True)
        seen = inputs.attend & computed  # [b, L]
        filled = seen & (inputs.canvas != self.mask_id)
        marks = scramble(scramble(inputs.positions + self.seed * 1_000_003) + inputs.canvas)  # [b, L]
        # Sums of integers do not depend on order and padding; sums of floats would.
        scene = (marks * filled).sum(dim=1, keepdim=True)  # [b, 1]
        share = filled.sum(dim=1, keepdim=True) / seen.sum(dim=1, keepdim=True).clamp(min=1)
        column = inputs.columns.gather(1, inputs.wanted)  # [b, w]
        place = inputs.positions.gather(1, column)
        before = torch.where(place > 0, column - 1, column)
        spot = scramble(place + self.seed * 7_368_787 + 1)  # [b, w]
        leaning = (spot & 3 == 0) & (place > 0)  # one position in four depends on its neighbour
        drag = _unit(scramble(spot + 1))  # small where the lead grows early, large where it grows late
        neighbour = (marks * filled).gather(1, before) * leaning
        return Signal(
            scene=scramble(scene + spot),
            favoured=self._token(scramble(spot + neighbour)),
            # Only products, because the rounding of a vectorised power depends on the row's place in the batch.
            lead=_DOUBT + (_TRUST - _DOUBT) * share * (1 - drag * (1 - share)),
            vocab=self.vocab,
        )

    def _token(self, code: Tensor) -> Tensor:
        token = code.remainder(self.vocab - 1)
        return token + (token >= self.mask_id)  # any token but the mask

    def new_cache(self, batch: int, length: int) -> KVStore:
        raise ModelError(f"the toy model has no cache (requested: {batch} rows of {length} columns); use cache=off")


@dataclass(frozen=True, slots=True)
class Signal:
    """Implements `protocols.Readout`."""

    scene: Tensor  # [b, w] a hash of all visible tokens and the position
    favoured: Tensor  # [b, w] token ids
    lead: Tensor  # [b, w] how much is added to the favoured token's logit
    vocab: int

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        tokens = torch.arange(self.vocab, device=row.device)
        logits = _NOISE * _unit(scramble(self.scene[row, at][:, None] + tokens * 2_654_435_761))  # [n, V]
        favoured, lead = self.favoured[row, at][:, None], self.lead[row, at][:, None]
        return logits.scatter_add(1, favoured, lead)


def _unit(code: Tensor) -> Tensor:
    """Return float32 in (0, 1], rounded once from an exact value, so that the row's place does not matter."""
    return to_unit(code).float()

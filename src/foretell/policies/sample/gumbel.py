"""LLaDA's sampling: the best of the logits plus Gumbel noise, which draws from softmax(logits / temperature)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import within
from foretell.noise import uniforms
from foretell.reductions import CHUNK, argmax
from foretell.state import DecodeState

_STREAM = 1


@dataclass(frozen=True, slots=True)
class Gumbel:
    """The noise is in float64: in float32 its rare large values are cut off, and the text suffers for it."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        within("gumbel's temperature", self.temperature, 0.0, 1e6)

    def __call__(self, logits: Tensor, state: DecodeState, row: Tensor, position: Tensor) -> Tensor:
        if self.temperature == 0:
            return argmax(logits)
        rows = max(1, CHUNK // logits.shape[-1])
        pieces = zip(*(torch.split(part, rows) for part in (logits, row, position)), strict=True)
        return torch.cat([self._draw(piece, state, at_row, at) for piece, at_row, at in pieces])

    def _draw(self, logits: Tensor, state: DecodeState, row: Tensor, position: Tensor) -> Tensor:
        noise = uniforms(state, row, position, _STREAM, logits.shape[-1])
        return argmax(logits.double() - self.temperature * (-noise.log()).log())

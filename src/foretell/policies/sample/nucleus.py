"""Top-p and top-k sampling at a temperature, as Dream samples its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import whole, within
from foretell.noise import uniform
from foretell.protocols import Logits
from foretell.reductions import in_chunks
from foretell.state import DecodeState

_STREAM = 2


@dataclass(frozen=True, slots=True)
class Nucleus:
    """The smallest set of tokens that holds `top_p` of the probability, and at most `top_k` of them (0: no limit).

    A temperature of 0 is greedy. Confidence, gap and entropy stay those of the model, before the cut.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        within("nucleus' temperature", self.temperature, 0.0, 1e6)
        within("nucleus' top_p", self.top_p, 0.0, 1.0)
        whole("nucleus' top_k", self.top_k, 0)

    def __call__(self, logits: Logits, state: DecodeState, row: Tensor, position: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits.best
        return in_chunks(lambda *piece: self._draw(state, *piece), logits.values, row, position)

    def _draw(self, state: DecodeState, logits: Tensor, row: Tensor, position: Tensor) -> Tensor:
        scaled, order = (logits.float() / self.temperature).sort(dim=-1, descending=True, stable=True)
        probs = scaled.softmax(dim=-1)
        kept = probs.cumsum(dim=-1) - probs < self.top_p
        kept[:, 0] = True
        if self.top_k:
            kept[:, self.top_k :] = False
        below = (probs * kept).double().cumsum(dim=-1)
        draw = uniform(state, row, position, _STREAM) * below[:, -1]
        rank = torch.searchsorted(below, draw[:, None], right=True)
        return order.gather(-1, rank.clamp(max=order.shape[-1] - 1)).squeeze(-1)

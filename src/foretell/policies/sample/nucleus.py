"""Top-p and top-k sampling at a temperature, as Dream samples its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.errors import whole, within
from foretell.loop.noise import draw_uniform
from foretell.loop.protocols import Logits
from foretell.loop.reductions import map_chunks
from foretell.loop.view import StateView

_STREAM = 2


@dataclass(frozen=True, slots=True)
class Nucleus:
    """Sample from the smallest set of tokens with `top_p` of the probability, at most `top_k` of them (0: no limit).

    A temperature of 0 is greedy. Confidence, gap and entropy are those of the model, before the cut;
    `score=filtered` ranks by those after the cut.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        check_cut("nucleus", self.temperature, self.top_p, self.top_k)

    def __call__(self, logits: Logits, state: StateView, row: Tensor, position: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits.best
        return map_chunks(lambda *piece: self._draw(state, *piece), logits.values, row, position)

    def _draw(self, state: StateView, logits: Tensor, row: Tensor, position: Tensor) -> Tensor:
        values, order = cut(logits, self.temperature, self.top_p, self.top_k)
        below = values.softmax(dim=-1).double().cumsum(dim=-1)
        draw = draw_uniform(state, row, position, _STREAM) * below[:, -1]
        rank = torch.searchsorted(below, draw[:, None], right=True)
        return order.gather(-1, rank.clamp(max=order.shape[-1] - 1)).squeeze(-1)


def check_cut(name: str, temperature: float, top_p: float, top_k: int) -> None:
    """Raise RecipeError unless these are a temperature, a share and a number of tokens."""
    within(f"{name}'s temperature", temperature, 0.0, 1e6)
    within(f"{name}'s top_p", top_p, 0.0, 1.0)
    whole(f"{name}'s top_k", top_k, 0)


def cut(logits: Tensor, temperature: float, top_p: float, top_k: int) -> tuple[Tensor, Tensor]:
    """Return logits / temperature in falling order, -inf outside of the cut, and the tokens that they belong to.

    The share `top_p` is computed before the limit `top_k` applies. [n, V] each
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    values, order = (precise / temperature).sort(dim=-1, descending=True, stable=True)
    before = F.pad(values.softmax(dim=-1).cumsum(dim=-1)[:, :-1], (1, 0))  # the share of more likely tokens
    dropped = before > top_p
    if top_k:
        dropped[:, top_k:] = True
    return values.masked_fill(dropped, -torch.inf), order

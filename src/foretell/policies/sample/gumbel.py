"""LLaDA's sampling: the best of the logits plus Gumbel noise, which draws from softmax(logits / temperature)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretell.errors import within
from foretell.loop.noise import draw_many
from foretell.loop.protocols import Logits
from foretell.loop.reductions import Reductions, map_chunks
from foretell.loop.view import StateView

_STREAM = 1


@dataclass(frozen=True, slots=True)
class Gumbel:
    """The noise is in float64, because float32 cuts off its rare large values, which makes the text worse."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        within("gumbel's temperature", self.temperature, 0.0, 1e6)

    def __call__(self, logits: Logits, state: StateView, row: Tensor, position: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits.best
        return map_chunks(lambda *piece: self._draw(state, *piece), logits.values, row, position)

    def _draw(self, state: StateView, logits: Tensor, row: Tensor, position: Tensor) -> Tensor:
        noise = draw_many(state, row, position, _STREAM, logits.shape[-1])
        return Reductions(logits.double() - self.temperature * (-noise.log()).log()).best

"""Scores after temperature, top-p and top-k, because Dream ranks its masks by the distribution that it samples from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.loop.protocols import LogitBeliefs, Score
from foretell.loop.view import StateView
from foretell.policies.sample.nucleus import check_cut, cut
from foretell.policies.score.entropy import Entropy


@dataclass(frozen=True, slots=True)
class Filtered:
    """Any score of the cut distribution; the parameters mean what they mean in `sample=nucleus`.

    A temperature of 0 cuts the unchanged distribution, as 1 does. 50 tokens are the default of Dream's released code.
    """

    score: Score = Entropy()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 50

    def __post_init__(self) -> None:
        check_cut("filtered", self.temperature, self.top_p, self.top_k)

    def __call__(self, beliefs: LogitBeliefs, state: StateView) -> Tensor:
        return self.score(beliefs.transform(self._filter), state)

    def _filter(self, logits: Tensor) -> Tensor:
        values, order = cut(logits, self.temperature or 1.0, self.top_p, self.top_k)
        return torch.empty_like(values).scatter_(1, order, values)

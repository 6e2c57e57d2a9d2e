"""A random order: a mask is filled first with probability softmax(score / temperature) (Dream's `alg_temp`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import within
from foretell.loop.noise import draw_grid
from foretell.loop.protocols import LogitBeliefs, Score
from foretell.loop.view import StateView
from foretell.policies.score.entropy import Entropy

_STREAM = 5


@dataclass(frozen=True, slots=True)
class Noisy:
    """Any score / `temperature` plus Gumbel noise, so that the best n are n draws without replacement.

    A temperature of 0 leaves the score unchanged.
    """

    score: Score = Entropy()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        within("noisy's temperature", self.temperature, 0.0, 1e6)

    def __call__(self, beliefs: LogitBeliefs, state: StateView) -> Tensor:
        scores = self.score(beliefs, state)
        if self.temperature == 0:
            return scores
        drawn = scores.double() / self.temperature - (-draw_grid(state, _STREAM).log()).log()
        last = scores <= torch.finfo(scores.dtype).min  # the value that `deferred` sets
        return drawn.masked_fill(last, torch.finfo(drawn.dtype).min)

"""An order that is drawn: a mask goes first with probability softmax(score / temperature) (Dream's `alg_temp`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import within
from foretell.loop.noise import uniform_grid
from foretell.loop.protocols import LogitBeliefs, Score
from foretell.loop.view import StateView
from foretell.policies.score.entropy import Entropy

_STREAM = 5


@dataclass(frozen=True, slots=True)
class Noisy:
    """Any score / `temperature` plus Gumbel noise, so that the best n are n draws without replacement.

    A temperature of 0 is the score alone.
    """

    score: Score = Entropy()
    temperature: float = 1.0

    def __post_init__(self) -> None:
        within("noisy's temperature", self.temperature, 0.0, 1e6)

    def __call__(self, beliefs: LogitBeliefs, state: StateView) -> Tensor:
        scores = self.score(beliefs, state)
        if self.temperature == 0:
            return scores
        drawn = scores.double() / self.temperature - (-uniform_grid(state, _STREAM).log()).log()
        last = scores <= torch.finfo(scores.dtype).min  # what `deferred` puts there
        return drawn.masked_fill(last, torch.finfo(drawn.dtype).min)

"""Fill as many masks as are jointly likely, by Fréchet's bound on their joint probability (Fast-dLLM++)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretell.errors import within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import at_least_one, fillable, first, order_by


@dataclass(frozen=True, slots=True)
class Frechet:
    """Fill the largest n with max(0, c_1 + ... + c_n - (n - 1)) - (1 - c_n) > `margin`, for falling confidences c.

    The first term is a lower bound on the probability that all n are right, however they depend on each other; the
    second is the highest probability that any other token can have at the n-th.
    """

    parallel: ClassVar[bool] = True
    margin: float = 0.25

    def __post_init__(self) -> None:
        within("frechet's margin", self.margin, 0.0, 1.0)

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        among = fillable(scores, state)
        order = order_by(beliefs.confidence, scores, among)
        taking = among.gather(1, order)
        doubt = torch.where(taking, 1 - beliefs.confidence.gather(1, order), 0)
        together = (1 - doubt.cumsum(dim=1)).clamp(min=0)  # the sum of c minus (n - 1), without loss of precision
        return at_least_one(first(order, (together - doubt > self.margin) & taking), scores, state)

"""Fill as many masks as an entropy budget allows, lowest entropies first (the EB sampler and DiffusionGemma)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from foretell.errors import within
from foretell.loop.protocols import Beliefs
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import at_least_one, fillable, first, order_by


@dataclass(frozen=True, slots=True)
class EntropyBound:
    """Fill the masks of lowest entropy while the sum of their entropies, without the highest, is at most `bound`.

    The sum bounds the mutual information of the filled tokens, which filling them at once ignores. A single token is
    always within the bound.
    """

    parallel: ClassVar[bool] = True
    bound: float = 0.1

    def __post_init__(self) -> None:
        within("entropy_bound's bound", self.bound, 0.0)

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        among = fillable(scores, state) & beliefs.entropy.isfinite()
        order = order_by(-beliefs.entropy, scores, among)
        taking = among.gather(1, order)
        entropy = torch.where(taking, beliefs.entropy.gather(1, order), 0)
        # The sum over the masks before each one, which has the highest entropy so far.
        spent = F.pad(entropy.cumsum(dim=1)[:, :-1], (1, 0))
        return at_least_one(first(order, (spent <= self.bound) & taking), scores, state)

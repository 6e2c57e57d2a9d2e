"""As many masks as an entropy budget pays for, the lowest entropies first (the EB sampler, DiffusionGemma's too)."""

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
    """The largest set, from the lowest entropy up, whose entropies without the highest of them sum to at most `bound`.

    That sum bounds what the tokens of the set can tell about each other, which filling them at once ignores; one alone
    is always free.
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
        spent = F.pad(
            entropy.cumsum(dim=1)[:, :-1], (1, 0)
        )  # by those before, for in this order the last is the highest
        return at_least_one(first(order, (spent <= self.bound) & taking), scores, state)

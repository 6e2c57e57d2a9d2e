"""A parallel rule that also keeps to the step budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.loop.protocols import Beliefs, Transfer
from foretell.loop.view import StateView
from foretell.policies.transfer.ranks import required_count, top_up
from foretell.policies.transfer.threshold import Threshold


@dataclass(frozen=True, slots=True)
class Paced:
    """Fill what `rule` allows, and at least as many masks as each block's share of the steps requires.

    Without it a parallel rule fills only what it allows, and the last step commits the rest. With it a small
    budget is spread over all steps: every step fills some masks that the rule alone would have left for later.
    """

    parallel: ClassVar[bool] = False
    rule: Transfer = Threshold()

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        return top_up(self.rule(scores, beliefs, state), scores, state, required_count(state))

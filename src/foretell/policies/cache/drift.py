"""A dual cache that is refreshed when the model changes its mind: moving drafts mean that the context has moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.errors import within
from foretell.loop.parts import Plan
from foretell.loop.protocols import Visible
from foretell.loop.view import StateView
from foretell.policies.cache.refresh import due
from foretell.policies.visible.everything import Everything


@dataclass(frozen=True, slots=True)
class Drift:
    """Computes the current block and what the last step wrote; everything anew once too many drafts have moved.

    That is when more than `share` of the block's masks were proposed another token by the last step than by the one
    before. Entering a block is no reason by itself. 0 refreshes at every change, 1 never.
    """

    stores: ClassVar[bool] = True

    share: float = 0.25
    visible: Visible = Everything()

    def __post_init__(self) -> None:
        within("drift's share", self.share, 0.0, 1.0)

    def __call__(self, state: StateView) -> Plan:
        return Plan(due(state, 0) | self._moved(state), state.in_block | ~state.ledger.fresh, self.visible(state))

    def _moved(self, state: StateView) -> Tensor:
        masks = state.eligible
        moved = masks & (state.unchanged == 0) & (state.step > 1)[:, None]
        return moved.sum(dim=1) > self.share * masks.sum(dim=1)

"""A dual cache that is refreshed when drafts change, because that means that the cached context is out of date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foretell.errors import within
from foretell.loop.parts import Plan
from foretell.loop.protocols import Visible
from foretell.loop.view import StateView
from foretell.policies.cache.refresh import needs_refresh
from foretell.policies.visible.everything import Everything


@dataclass(frozen=True, slots=True)
class Drift:
    """Compute the current block and what the last step wrote; recompute everything once too many drafts have changed.

    A refresh happens if the last step changed the proposed token of more than `share` of the block's masks. Entering
    a block alone does not cause one. 0 refreshes at every change, 1 never.
    """

    stores: ClassVar[bool] = True

    share: float = 0.25
    visible: Visible = Everything()

    def __post_init__(self) -> None:
        within("drift's share", self.share, 0.0, 1.0)

    def __call__(self, state: StateView) -> Plan:
        return Plan(
            needs_refresh(state, 0) | self._has_drifted(state),
            state.in_block | ~state.ledger.fresh,
            self.visible(state),
        )

    def _has_drifted(self, state: StateView) -> Tensor:
        masks = state.eligible
        changed = masks & (state.unchanged == 0) & (state.step > 1)[:, None]
        return changed.sum(dim=1) > self.share * masks.sum(dim=1)

"""dKV-Cache: a token's keys and values are frozen one step after it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretell.errors import whole
from foretell.loop.parts import Plan
from foretell.loop.protocols import Visible
from foretell.loop.view import StateView
from foretell.policies.cache.refresh import needs_refresh
from foretell.policies.visible.everything import Everything


@dataclass(frozen=True, slots=True)
class Delayed:
    """Compute the masks and what the last step wrote; recompute everything every `refresh` steps (0: only at first)."""

    stores: ClassVar[bool] = True

    refresh: int = 8
    visible: Visible = Everything()

    def __post_init__(self) -> None:
        whole("delayed's refresh", self.refresh, 0)

    def __call__(self, state: StateView) -> Plan:
        return Plan(needs_refresh(state, self.refresh), state.blank | ~state.ledger.fresh, self.visible(state))

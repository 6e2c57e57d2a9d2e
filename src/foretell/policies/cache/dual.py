"""Fast-dLLM's dual cache: everything but the current block is computed once per block."""

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
class Dual:
    """Run a full pass, which also fills masks, on entering a block; until the next block, compute only the block.

    Positions that a stopping rule reads are computed too, so that their gaps are never stale.
    `refresh` adds a full pass every `refresh` steps (1: always, which is exact); 0 adds none.
    `lead`: Dream reads a block's first token from the column before it, which is computed along with the block. The
    released code leaves that column out and fills the first token on entering: `lead=false` with `transfer=opening`.
    """

    stores: ClassVar[bool] = True

    refresh: int = 0
    visible: Visible = Everything()
    lead: bool = True

    def __post_init__(self) -> None:
        whole("dual's refresh", self.refresh, 0)

    def __call__(self, state: StateView) -> Plan:
        entered = state.ledger.block != state.block
        return Plan(entered | needs_refresh(state, self.refresh), state.in_block, self.visible(state), self.lead)

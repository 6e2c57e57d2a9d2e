"""Fast-dLLM's prefix cache: what comes before the current block is computed once per block."""

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
class Prefix:
    """Run a full pass, which also fills masks, on entering a block; then compute the block and all that follows it.

    `refresh` adds a full pass every `refresh` steps (1: always, which is exact); 0 adds none.
    `lead`: Dream reads a block's first token from the column before it, which is computed along with the block. The
    released code leaves that column out and fills the first token on entering: `lead=false` with `transfer=opening`.
    """

    stores: ClassVar[bool] = True

    refresh: int = 0
    visible: Visible = Everything()
    lead: bool = True

    def __post_init__(self) -> None:
        whole("prefix's refresh", self.refresh, 0)

    def __call__(self, state: StateView) -> Plan:
        entered = state.ledger.block != state.block
        onwards = state.positions >= (state.block * state.block_length)[:, None]
        return Plan(entered | needs_refresh(state, self.refresh), onwards, self.visible(state), self.lead)

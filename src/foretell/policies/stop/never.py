"""Spend the whole budget: the paper's "Full" baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Never:
    def reads(self, state: StateView) -> Tensor:
        return torch.zeros_like(state.answer)

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:  # noqa: ARG002
        return Verdict(torch.zeros_like(state.done))

"""Spend the whole budget: the paper's "Full" baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.protocols import Beliefs, Verdict
from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class Never:
    def reads(self, state: DecodeState) -> Tensor:
        return torch.zeros_like(state.answer)

    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Verdict:  # noqa: ARG002
        return Verdict(torch.zeros_like(state.done))

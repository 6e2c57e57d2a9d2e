"""Several stopping rules at once: all of them must agree, or any of them is enough."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from foretell.errors import RecipeError
from foretell.protocols import Beliefs, Stop
from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class _Combined:
    rules: tuple[Stop, ...]

    def __post_init__(self) -> None:
        if len(self.rules) < 2:
            raise RecipeError(f"a combination needs at least two stopping rules, got {len(self.rules)}")

    def reads(self, state: DecodeState) -> Tensor:
        return reduce(torch.logical_or, (rule.reads(state) for rule in self.rules))


@dataclass(frozen=True, slots=True)
class All(_Combined):
    """Settled when every rule says so."""

    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Tensor:
        return reduce(torch.logical_and, (rule(beliefs, state) for rule in self.rules))


@dataclass(frozen=True, slots=True)
class Any(_Combined):
    """Settled when one rule says so."""

    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Tensor:
        return reduce(torch.logical_or, (rule(beliefs, state) for rule in self.rules))

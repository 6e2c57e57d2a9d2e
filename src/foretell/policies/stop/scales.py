"""What is compared with a threshold: the gap, or a measure that depends less on the model and its dtype."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from foretell.errors import RecipeError, within
from foretell.loop.protocols import Beliefs
from foretell.policies.stop.features import log_odds

RANKS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
LEAST = 1e-4  # the least distance of two quantiles, so that equal ones do not cause a division by 0


class Scale(Protocol):
    measure: ClassVar[str]  # the name of its values

    def __call__(self, beliefs: Beliefs) -> Tensor:
        """Return how certain the model is of every position; larger means more certain. [B, N]"""


@dataclass(frozen=True, slots=True)
class Gap:
    """The confidence gap in logits, the paper's measure."""

    measure: ClassVar[str] = "gap"

    def __call__(self, beliefs: Beliefs) -> Tensor:
        return beliefs.gap


@dataclass(frozen=True, slots=True)
class LogOdds:
    """Log-odds of the proposed token, log p / (1 - p), which count all other tokens, not only the second best."""

    measure: ClassVar[str] = "log-odds"

    def __call__(self, beliefs: Beliefs) -> Tensor:
        return log_odds(beliefs.confidence)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Gaps as ranks from 0 to 1 among the gaps of past decodings, given by their quantiles at 10, 25, 50, 75 and 90%.

    Ranks are interpolated between quantiles. Above the last one they approach 1, so that larger gaps stay larger.
    """

    measure: ClassVar[str] = "rank"
    q10: float = 0.5
    q25: float = 1.5
    q50: float = 4.0
    q75: float = 7.0
    q90: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            within(f"ranks' {field.name}", getattr(self, field.name), 0.0)
        if list(self.quantiles) != sorted(self.quantiles):
            raise RecipeError(f"the quantiles of ranks must not decrease, got {', '.join(map(str, self.quantiles))}")

    @property
    def quantiles(self) -> tuple[float, ...]:
        return self.q10, self.q25, self.q50, self.q75, self.q90

    @classmethod
    def of(cls, gaps: Tensor) -> Ranks:
        """Return ranks fitted to gaps of any shape."""
        if not gaps.numel():
            raise RecipeError("ranks need at least one gap to be fitted to, got none")
        found = gaps.flatten().float().sort().values
        places = [round(rank * (len(found) - 1)) for rank in RANKS[1:]]
        return cls(*(round(float(found[place]), 4) for place in places))

    def __call__(self, beliefs: Beliefs) -> Tensor:
        gap = beliefs.gap.float()
        ends = gap.new_tensor([0.0, *self.quantiles])  # [6]
        ranks = gap.new_tensor(RANKS)
        at = torch.bucketize(gap, ends, right=True).clamp(1, len(RANKS) - 1)
        low, high = ends[at - 1], ends[at]
        share = ((gap - low) / (high - low).clamp(min=LEAST)).clamp(0, 1)
        inside = ranks[at - 1] + (ranks[at] - ranks[at - 1]) * share
        spread = max(self.q90 - self.q50, LEAST)
        beyond = 1 - (1 - RANKS[-1]) * torch.exp(-(gap - self.q90).clamp(min=0) / spread)
        return torch.where(gap > self.q90, beyond, inside)

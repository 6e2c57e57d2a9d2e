"""Threshold schedules tau(p): strict early, when much can still change, and tolerant late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foretell.errors import RecipeError, within


class Schedule(Protocol):
    def __call__(self, progress: Tensor) -> Tensor:
        """Return the threshold [B] at progress p [B]."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Three plateaus, the paper's default."""

    high: float = 7.5
    mid: float = 5.0
    low: float = 2.5
    first: float = 0.33
    second: float = 0.67

    def __post_init__(self) -> None:
        _check_no_nan(high=self.high, mid=self.mid, low=self.low)
        if not 0 <= self.first <= self.second <= 1:
            raise RecipeError(
                f"staged needs 0 <= first <= second <= 1, got first={self.first!r}, second={self.second!r}"
            )

    def __call__(self, progress: Tensor) -> Tensor:
        stage = torch.bucketize(progress, progress.new_tensor([self.first, self.second]), right=True)
        return progress.new_tensor([self.high, self.mid, self.low])[stage]


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line from `start` at p = 0 to `end` at p = 1, the paper's ablation."""

    start: float = 8.0
    end: float = 3.5

    def __post_init__(self) -> None:
        _check_no_nan(start=self.start, end=self.end)

    def __call__(self, progress: Tensor) -> Tensor:
        return _interpolate(self.start, self.end, progress)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine wave from `start` to `end`: slow at both ends (SchED)."""

    start: float = 7.5
    end: float = 2.5

    def __post_init__(self) -> None:
        _check_no_nan(start=self.start, end=self.end)

    def __call__(self, progress: Tensor) -> Tensor:
        return _interpolate(self.start, self.end, (1 - (math.pi * progress).cos()) / 2)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A decay of rate `k` from `start` at p = 0 towards `end` (SchED)."""

    start: float = 7.5
    end: float = 2.5
    k: float = 4.0

    def __post_init__(self) -> None:
        _check_no_nan(start=self.start, end=self.end)
        within("exponential's k", self.k, 0.0)

    def __call__(self, progress: Tensor) -> Tensor:
        return _interpolate(self.start, self.end, 1 - (-self.k * progress).exp())


def _interpolate(start: float, end: float, share: Tensor) -> Tensor:
    """Interpolate from `start` at share 0 to `end` at share 1. If either is infinite, the result is infinite too."""
    if math.isinf(start) or math.isinf(end):
        return torch.full_like(share, max(start, end))
    return start + (end - start) * share


def _check_no_nan(**values: float) -> None:
    for name, value in values.items():
        if math.isnan(value):
            raise RecipeError(f"the threshold {name} must be a number or inf, got {value!r}")

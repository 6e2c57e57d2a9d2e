"""Threshold schedules tau(p): strict early, when much can still change, and tolerant late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foretell.errors import RecipeError, show, within


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
        _check_thresholds(high=self.high, mid=self.mid, low=self.low)
        within("staged's first", self.first, 0.0, 1.0)
        within("staged's second", self.second, 0.0, 1.0)
        if self.first > self.second:
            raise RecipeError(f"staged needs first <= second, got first={show(self.first)}, second={show(self.second)}")

    def __call__(self, progress: Tensor) -> Tensor:
        stage = torch.bucketize(progress, progress.new_tensor([self.first, self.second]), right=True)
        return progress.new_tensor([self.high, self.mid, self.low])[stage]


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line from `start` at p = 0 to `end` at p = 1, the paper's ablation."""

    start: float = 8.0
    end: float = 3.5

    def __post_init__(self) -> None:
        _check_thresholds(start=self.start, end=self.end)

    def __call__(self, progress: Tensor) -> Tensor:
        return _interpolate(self.start, self.end, progress)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine wave from `start` to `end`: slow at both ends (SchED)."""

    start: float = 7.5
    end: float = 2.5

    def __post_init__(self) -> None:
        _check_thresholds(start=self.start, end=self.end)

    def __call__(self, progress: Tensor) -> Tensor:
        return _interpolate(self.start, self.end, (1 - (math.pi * progress).cos()) / 2)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A decay of rate `k` from `start` at p = 0 towards `end` (SchED)."""

    start: float = 7.5
    end: float = 2.5
    k: float = 4.0

    def __post_init__(self) -> None:
        _check_thresholds(start=self.start, end=self.end)
        within("exponential's k", self.k, 0.0, 1e6)

    def __call__(self, progress: Tensor) -> Tensor:
        return _interpolate(self.start, self.end, 1 - (-self.k * progress).exp())


def _interpolate(start: float, end: float, share: Tensor) -> Tensor:
    """Interpolate from `start` at share 0 to `end` at share 1. If either is infinite, the result is infinite too."""
    if math.isinf(start) or math.isinf(end):
        return torch.full_like(share, max(start, end))
    return start + (end - start) * share


def _check_thresholds(**values: float) -> None:
    for name, value in values.items():
        within(f"the threshold {name}", value, -math.inf)

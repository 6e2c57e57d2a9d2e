"""The least time a forward pass can take on a device: the larger of its arithmetic and its memory traffic.

The roofline model of Williams, Waterman and Patterson (2009). Only unavoidable work counts: multiplications by the
weights and within attention; each weight matrix read once per pass, and stored keys and values moved once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from foretell.plan.devices import Device
from foretell.plan.passes import Pass
from foretell.plan.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Bound:
    """The least seconds of some passes, by what limits them."""

    arithmetic: float = 0.0
    bandwidth: float = 0.0
    seconds: float = 0.0  # the larger one of each pass, added up

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.arithmetic + other.arithmetic, self.bandwidth + other.bandwidth, self.seconds + other.seconds)

    def __mul__(self, times: float) -> Bound:
        return Bound(self.arithmetic * times, self.bandwidth * times, self.seconds * times)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Computes bounds for one model in one dtype on one device."""

    shape: ModelShape
    device: Device
    dtype: torch.dtype

    def flops(self, one: Pass) -> float:
        """Return the floating-point operations of a pass."""
        size = self.shape.config
        columns = one.rows * one.columns
        attention = 4 * size.layers * size.heads * size.head_dim * columns * one.attended
        return 2.0 * self.shape.layer_weights * columns + attention + 2.0 * self.shape.head_weights * one.read

    def traffic(self, one: Pass) -> float:
        """Return the bytes that a pass reads and writes at least."""
        size = self.shape.config
        weights = self.shape.layer_weights + (self.shape.head_weights if one.read else 0)
        moved = one.rows * max(one.columns, one.attended) if one.stored else 0
        return float(self.dtype.itemsize * (weights + 2 * size.layers * size.kv_heads * size.head_dim * moved))

    def bound(self, one: Pass) -> Bound:
        arithmetic = self.flops(one) / self.device.flops(self.dtype)
        bandwidth = self.traffic(one) / self.device.bandwidth
        return Bound(arithmetic, bandwidth, max(arithmetic, bandwidth))

    def total(self, passes: Iterable[Pass]) -> Bound:
        return sum((self.bound(one) for one in passes), Bound())

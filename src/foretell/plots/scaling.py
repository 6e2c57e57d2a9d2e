"""Cost against size: measurements compared with the curve expected from the number of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Series:
    """The cost at several sizes, in any unit."""

    sizes: Sequence[float]
    measured: Sequence[float]
    expected: Sequence[float]  # e.g. operations; only the shape of the curve matters

    @property
    def slopes(self) -> tuple[float, float]:
        """The slopes of the measured and the expected cost on logarithmic axes."""
        measured, expected = (
            float(np.polyfit(np.log(self.sizes), np.log(cost), 1)[0]) for cost in (self.measured, self.expected)
        )
        return measured, expected


def plot_scaling(groups: Mapping[str, Series]) -> Figure:
    """Plot one panel per varied size; the expected curve goes through the last measured point."""
    figure: Figure = plt.figure(figsize=(3.2 * len(groups), 3.0), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, (name, one) in zip(panels, groups.items(), strict=True):
        scale = one.measured[-1] / one.expected[-1]
        axes.plot(one.sizes, [scale * cost for cost in one.expected], color="#8a8a8a", linewidth=1, label="arithmetic")
        axes.plot(one.sizes, one.measured, "o", color="#3b78b5", markersize=5, label="measured")
        measured, expected = one.slopes
        axes.set_title(f"{name}: slope {measured:.2f}, expected {expected:.2f}", fontsize=8)
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(list(one.sizes), [f"{size:g}" for size in one.sizes], fontsize=6, minor=False)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_minor_formatter(_milliseconds)
        axes.yaxis.set_major_formatter(_milliseconds)
        axes.tick_params(labelsize=6, which="both")
        axes.set_xlabel(name, fontsize=8)
    panels[0].set_ylabel("milliseconds per step", fontsize=8)
    panels[0].legend(fontsize=7, frameon=False)
    return figure


def _milliseconds(seconds: float, _: int) -> str:
    """Format a tick as a plain number, also between powers of ten."""
    return f"{1000 * seconds:g}"

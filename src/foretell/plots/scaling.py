"""Speed: bars of speedups, and cost against size compared with the number of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretell.plots import colours


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


def plot_speed(bars: Mapping[str, Mapping[str, float]], scaling: Mapping[str, Series]) -> Figure:
    """Plot one panel of bars per comparison above, and one panel per varied size below."""
    figure: Figure = plt.figure(figsize=(10, 6.2), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    above, below = parts
    if bars:
        for axes, (title, speedups) in zip(above.subplots(1, len(bars), squeeze=False)[0], bars.items(), strict=True):
            draw_bars(axes, title, speedups)
    panels: Any = below.subplots(1, len(scaling), squeeze=False)[0] if scaling else ()
    for axes, (name, one) in zip(panels, scaling.items(), strict=True):
        draw_scaling(axes, name, one)
    if scaling:
        panels[0].set_ylabel("time per step, relative", fontsize=8)
        panels[0].legend(fontsize=7, frameon=False)
    return figure


def draw_bars(axes: Axes, title: str, speedups: Mapping[str, float]) -> None:
    """Draw one horizontal bar per name, the first on top; a dotted line marks 1."""
    places = list(range(len(speedups)))[::-1]
    bars = axes.barh(places, list(speedups.values()), 0.65, color=colours.BLUE)
    axes.bar_label(bars, [f"{ratio:.1f}x" for ratio in speedups.values()], fontsize=7, padding=2)
    axes.axvline(1, color=colours.LINE, linewidth=0.8, linestyle=":")
    axes.set_yticks(places, list(speedups))
    axes.set_xlim(0, 1.18 * max(speedups.values()))
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def draw_scaling(axes: Axes, name: str, one: Series) -> None:
    """Draw the cost relative to that at the smallest size, measured and expected, on axes with the same range."""
    looks: tuple[tuple[Sequence[float], dict[str, Any]], ...] = (
        (one.expected, {"color": colours.GREY, "label": "number of operations", "linestyle": "--"}),
        (one.measured, {"color": colours.BLUE, "label": "measured", "marker": "o", "markersize": 4}),
    )
    for costs, look in looks:
        axes.plot(one.sizes, [cost / costs[0] for cost in costs], **look)
    axes.set(xscale="log", yscale="log", ylim=(0.8, 12))
    axes.set_xticks(list(one.sizes), [f"{size:g}" for size in one.sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks([1, 2, 4, 8], ["1x", "2x", "4x", "8x"])
    axes.set_yticks([], minor=True)
    axes.tick_params(labelsize=7)
    axes.grid(axis="y", color=colours.PALE, linewidth=0.7)
    axes.set_xlabel(name, fontsize=8)
    axes.set_title(f"time of a step against the {name}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)

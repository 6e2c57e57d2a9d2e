"""Ablation plots: accuracy against steps, and grouped bars with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretell.plots.colours import BLACK, BLUE, PALE, PURPLE, colours_of

MARKERS = ("o", "s", "^", "D")
LABEL = {
    "facecolor": "white",
    "edgecolor": "none",
    "alpha": 0.8,
    "pad": 0.8,
}  # keeps error bars from covering the numbers


@dataclass(frozen=True, slots=True)
class Point:
    """One recipe: its mean steps, and its accuracy with an interval, from 0 to 1."""

    name: str
    steps: float
    accuracy: float
    low: float
    high: float


Groups = Mapping[str, Sequence[Point]]  # keyed by the setting that varies; every group has the same recipes


def error_bars(points: Sequence[Point]) -> list[list[float]]:
    """Return the lengths of the intervals below and above each accuracy, in percent."""
    below = [100 * max(0.0, point.accuracy - point.low) for point in points]
    return [below, [100 * max(0.0, point.high - point.accuracy) for point in points]]


def draw_bars(axes: Axes, groups: Groups) -> None:
    """Draw one group of bars per key; the legend names the recipes, the bars show their mean steps."""
    names = [point.name for point in next(iter(groups.values()))]
    width = 0.8 / len(names)
    for index, (name, colour) in enumerate(colours_of(names).items()):
        points = [points[index] for points in groups.values()]
        where = [place + (index - (len(names) - 1) / 2) * width for place in range(len(points))]
        shown = [100 * point.accuracy for point in points]
        axes.bar(where, shown, width * 0.94, color=colour, label=name, alpha=0.85)
        axes.errorbar(where, shown, error_bars(points), fmt="none", ecolor=BLACK, elinewidth=0.9)
        for place, point in zip(where, points, strict=True):
            text = f"{point.steps:.0f}"
            axes.annotate(text, (place, 2), ha="center", va="bottom", fontsize=6.5, color=BLACK, bbox=LABEL)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(ylabel="accuracy, %", ylim=(0, 102))
    _style_axes(axes)
    axes.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(names)))


def draw_budgets(axes: Axes, lines: Groups, stopped: Groups) -> None:
    """Draw accuracy against static budgets, one line per window; `stopped` holds the points with early stopping."""
    for colour, (window, points) in zip((BLUE, PURPLE), lines.items(), strict=False):
        xs, ys = [point.steps for point in points], [100 * point.accuracy for point in points]
        axes.plot(xs, ys, color=colour, marker=".", linewidth=1.3, label=f"{window}: static")
        axes.errorbar(xs, ys, error_bars(points), fmt="none", ecolor=colour, elinewidth=0.8)
        for point in stopped[window]:
            look: dict[str, Any] = {
                "color": colours_of([point.name])[point.name],
                "markeredgecolor": colour,
                "markeredgewidth": 1.4,
            }
            label = f"{window}: {point.name}"
            axes.plot(point.steps, 100 * point.accuracy, "D", markersize=7, label=label, **look)
    axes.set_xscale("log", base=2)
    ticks = sorted({round(point.steps) for points in lines.values() for point in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="mean steps", ylabel="accuracy, %", ylim=(0, 102))
    _style_axes(axes)
    axes.tick_params(axis="x", labelsize=6.5)
    axes.legend(fontsize=6.5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def draw_against_steps(axes: Axes, groups: Groups) -> None:
    """Draw accuracy against mean steps: one marker per recipe, one colour per group."""
    for (group, points), colour in zip(groups.items(), colours_of(groups).values(), strict=True):
        for marker, point in zip(MARKERS, points, strict=False):
            x, y = point.steps, 100 * point.accuracy
            axes.errorbar(x, y, error_bars([point]), fmt="none", ecolor=colour, elinewidth=0.8)
            axes.plot(x, y, marker, color=colour, markersize=6, label=f"{point.name}, {group}")
    axes.set(xlabel="mean steps", ylabel="accuracy, %", ylim=(0, 102))
    axes.margins(x=0.12)
    _style_axes(axes)
    axes.legend(fontsize=6.5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def plot_ablations(lines: Groups, stopped: Groups, orders: Groups, blocks: Groups, schedules: Groups) -> Figure:
    """Plot static budgets, remasking strategies, block lengths and schedules, one panel each."""
    figure: Figure = plt.figure(figsize=(10, 7.4), layout="constrained")
    grid = figure.subplots(2, 2)
    draw_budgets(grid[0, 0], lines, stopped)
    draw_bars(grid[0, 1], orders)
    draw_bars(grid[1, 0], blocks)
    draw_against_steps(grid[1, 1], schedules)
    grid[0, 1].set_xlabel("remasking strategy; mean steps on the bars")
    grid[1, 0].set_xlabel("block length; mean steps on the bars")
    return figure


def plot_comparison(groups: Groups, xlabel: str) -> Figure:
    """Plot grouped bars in a single panel."""
    figure: Figure = plt.figure(figsize=(max(8.0, 1.3 * len(groups)), 3.8), layout="constrained")
    axes = figure.subplots()
    draw_bars(axes, groups)
    axes.set_xlabel(xlabel)
    return figure


def _style_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)

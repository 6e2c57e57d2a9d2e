"""Risk against speed: the share of answers that stopping changes, with its interval, for every way to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

COLOURS = ("#8a8a8a", "#3b78b5", "#f2a33c", "#2e9e4f", "#b5453b", "#7d5ba6")
MARKERS = ("o", "^", "s", "D")


@dataclass(frozen=True, slots=True)
class Stopped:
    """One way to stop: a point whose colour says `what` and whose marker says `how`; shares with their interval."""

    what: str
    how: str
    speedup: float
    risk: float
    low: float
    high: float


def risks(groups: Mapping[str, Sequence[Stopped]]) -> Figure:
    """A panel for each task, three in a row."""
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure: Figure = plt.figure(figsize=(3.4 * columns, 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    every = [point for points in groups.values() for point in points]
    colours = dict(zip(dict.fromkeys(point.what for point in every), COLOURS, strict=False))
    markers = dict(zip(dict.fromkeys(point.how for point in every), MARKERS, strict=False))
    shown: dict[str, Any] = {}
    for axes, (task, points) in zip(panels, groups.items(), strict=False):
        for point in points:
            reach = [[100 * (point.risk - point.low)], [100 * (point.high - point.risk)]]
            size = max(4, 11 - 3 * list(colours).index(point.what))  # what comes out alike is seen one inside the other
            look = {"color": colours[point.what], "marker": markers[point.how], "markersize": size, "elinewidth": 0.9}
            drawn = axes.errorbar(point.speedup, 100 * point.risk, reach, linestyle="", alpha=0.85, **look)
            shown.setdefault(f"{point.what}, {point.how}", drawn)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("times fewer steps than full", fontsize=8)
        axes.set_ylabel("answers that differ, %", fontsize=8)
        axes.set_ylim(bottom=-0.05 * axes.get_ylim()[1])  # room for a risk of 0
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    figure.legend(list(shown.values()), list(shown), loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return figure

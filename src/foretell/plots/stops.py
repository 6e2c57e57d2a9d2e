"""Risk and speedup: the share of answers that stopping changes, with its interval, one row per stopping rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretell.plots.colours import colours_of

LEAST = 5.0  # percent: no axis is shorter, so that a small risk looks small
MARKERS = ("o", "^", "s", "D")


@dataclass(frozen=True, slots=True)
class Stopped:
    """One stopping rule: `what` and `how` name its row, and `how` selects its mark."""

    what: str
    how: str
    speedup: float
    risk: float
    low: float
    high: float

    @property
    def name(self) -> str:
        return f"{self.what}, {self.how}"


def plot_stops(groups: Mapping[str, Sequence[Stopped]]) -> Figure:
    """Plot one panel per task, three per row; all panels have the same rows, so equal results do not overlap."""
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    every = {point.name: point.how for points in groups.values() for point in points}
    figure: Figure = plt.figure(figsize=(3.4 * columns + 0.6, (0.24 * len(every) + 1.0) * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for axes, (task, points) in zip(panels, groups.items(), strict=False):
        _draw(axes, points, every)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("answers that differ, %", fontsize=8)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    return figure


def _draw(axes: Axes, points: Sequence[Stopped], every: Mapping[str, str]) -> None:
    """Draw the risk as a mark in its row and the speedup as a number at its end; a dash if the rule is missing."""
    at = {point.name: point for point in points}
    hows = dict.fromkeys(every.values())
    looks = dict(zip(hows, zip(colours_of(hows).values(), MARKERS, strict=False), strict=False))
    for place, (name, how) in enumerate(every.items()):
        point = at.get(name)
        label = "-" if point is None else f"{point.speedup:.2f}x"
        axes.text(1.02, place, label, transform=axes.get_yaxis_transform(), fontsize=7, va="center")
        if point is not None:
            reach = [[100 * max(0.0, point.risk - point.low)], [100 * max(0.0, point.high - point.risk)]]
            colour, marker = looks[how]
            axes.errorbar(100 * point.risk, place, xerr=reach, color=colour, marker=marker, markersize=5, elinewidth=1)
    axes.text(1.02, -0.85, "speedup", transform=axes.get_yaxis_transform(), fontsize=7, va="center")
    axes.set_yticks(range(len(every)), list(every))
    axes.set_ylim(len(every) - 0.5, -0.5)  # the first row on top
    right = max(LEAST, axes.get_xlim()[1])
    axes.set_xlim(-0.03 * right, right)  # a mark at 0 is not clipped
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)

"""Histograms over the steps: when an answer first appeared, and when it last changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretell.plots import colours

WIDTH = 5  # percent of the steps per bar
LINE = 0.075  # height of a line of text, relative to a panel
FILL, TEXT, OUTLINE, MARK = colours.LIGHT_BLUE, colours.RIGHT, colours.WRONG, colours.LINE


@dataclass(frozen=True, slots=True)
class HistogramPanel:
    """One or two named groups of values, each in percent of the steps, in (0, 100]."""

    title: str
    groups: Mapping[str, Sequence[float]]


def progress(steps: Sequence[int], total: int) -> list[float]:
    """Convert steps, counted from 0, to percent of `total`: the first of 64 steps ends at 1.6%."""
    return [100 * (step + 1) / total for step in steps]


def share_by(values: Sequence[float], mark: float) -> float | None:
    """Return the share of the values that are at most `mark` percent; None if there are none."""
    return sum(value <= mark + 1e-9 for value in values) / len(values) if values else None


def share_after(values: Sequence[float], mark: float) -> float | None:
    by = share_by(values, mark)
    return None if by is None else 1 - by


def bar_heights(values: Sequence[float], width: int = WIDTH) -> list[float]:
    """Return the percentage of values per bar; a bar includes its upper edge, so bars add up to `share_by`."""
    counts = [0] * (100 // width)
    for value in values:
        counts[min(len(counts), max(1, int(np.ceil(value / width - 1e-9)))) - 1] += 1
    return [100 * count / max(1, len(values)) for count in counts]


def plot_histograms(panels: Sequence[HistogramPanel], columns: int, xlabel: str, marks: Sequence[float] = ()) -> Figure:
    """Plot the panels on common axes: the first group filled, the second as an outline.

    `marks` are dotted lines, labelled with the shares of both groups up to there.
    """
    rows = -(-len(panels) // columns)
    figure: Figure = plt.figure(figsize=(2.9 * columns, 2.5 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    top = max(
        (height for panel in panels for values in panel.groups.values() for height in bar_heights(values)), default=0
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw(axes, panel, marks)
        axes.set_ylim(0, min(100, 1.1 * max(top, 1)))  # shares are at most 100
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel(xlabel, fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("% of the answers", fontsize=8)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def _draw(axes: Axes, panel: HistogramPanel, marks: Sequence[float]) -> None:
    edges = np.arange(0, 101, WIDTH)
    (filled, first), *rest = panel.groups.items()
    axes.stairs(bar_heights(first), edges, fill=True, color=FILL, label=filled)
    for name, values in rest:
        axes.stairs(bar_heights(values), edges, color=OUTLINE, linewidth=1.3, label=name)
    for mark in marks:
        axes.axvline(mark, color=MARK, linewidth=0.8, linestyle=":")
        for line, (values, colour) in enumerate(zip(panel.groups.values(), (TEXT, OUTLINE), strict=False)):
            share = share_by(values, mark)
            if share is not None:
                style: dict[str, Any] = {"fontsize": 6.5, "color": colour, "ha": "center", "va": "bottom"}
                where = (mark, 1.01 + LINE * (1 - line))
                axes.text(*where, f"{100 * share:.0f}%", transform=axes.get_xaxis_transform(), **style)
    axes.set_title(panel.title, fontsize=8.5, pad=22 if marks else None)  # place the title above the shares
    axes.set(xlim=(0, 100), xticks=(0, 25, 50, 75, 100))
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)

"""The frontier: accuracy against cost, one point per recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from foretell.plots import colours
from foretell.plots.labels import Box, cover_line, place_labels

DEEP = 0.2  # points that lose more accuracy than this are drawn at the bottom
SPAN = (1.2 * DEEP, 0.2 * DEEP)  # of every axis, below and above the first recipe: so a small loss looks small
OWN = "swift"  # the recipe with its own mark
POINTS = 72  # points per inch
DOT = 5  # diameter in points
EVEN: dict[str, Any] = {"color": colours.LINE, "linewidth": 0.9, "linestyle": ":"}
ALONE, STOPPED, BEST = colours.GREY, colours.SKY, colours.BLACK
STAR: dict[str, Any] = {"color": colours.SWIFT, "marker": "*", "markersize": 14, "markeredgecolor": "white"}


@dataclass(frozen=True, slots=True)
class Spot:
    """One recipe: how many times cheaper than full decoding it is, and its accuracy, from 0 to 1."""

    name: str
    saving: float
    accuracy: float
    stopped: bool  # whether it has a stopping rule
    interval: tuple[float, float] | None = None  # of the accuracy


def plot_frontier(groups: Mapping[str, Sequence[Spot]], cost: str, within: float, named: Sequence[str]) -> Figure:
    """Plot one panel per task, two per row; the `named` recipes and the frontier are numbered, with a legend below.

    A line marks the first recipe's accuracy minus `within`; points that lose more than `DEEP` are at the bottom, and
    the recipe `OWN` is a star. All panels show the same range of accuracies.
    """
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    figure: Figure = plt.figure(figsize=(9.6, 3.6 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (task, spots) in zip(panels, groups.items(), strict=False):
        _draw_panel(axes, spots, within)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel(f"{cost}, times less than full", fontsize=8)
        axes.set_ylabel("accuracy, %", fontsize=8)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    numbers = number_ways(groups, named)
    _draw_legends(figure, numbers, within)
    figure.draw_without_rendering()  # fixes the positions of the points on the page
    for axes, spots in zip(panels, groups.values(), strict=False):
        _label_points(axes, spots, [spot for spot in spots if spot.name in named or spot in _best(spots)], numbers)
    return figure


def number_ways(groups: Mapping[str, Sequence[Spot]], named: Sequence[str]) -> dict[str, int]:
    """Number the labelled recipes, the same in every panel: first the `named` ones, then those on a frontier."""
    known = {spot.name for spots in groups.values() for spot in spots}
    best = [spot.name for spots in groups.values() for spot in _best(spots)]
    names = dict.fromkeys([*(name for name in named if name in known), *best])
    return {name: index + 1 for index, name in enumerate(names)}


def find_frontier(spots: Sequence[Spot]) -> list[Spot]:
    """Return the spots that no other beats in both cost and accuracy, the most expensive first."""
    kept: list[Spot] = []
    for spot in sorted(spots, key=lambda one: (-one.saving, -one.accuracy)):
        if not kept or spot.accuracy > kept[-1].accuracy:
            kept.append(spot)
    return kept[::-1]


def _best(spots: Sequence[Spot]) -> list[Spot]:
    return [spot for spot in find_frontier(spots) if spot.accuracy >= _floor(spots)]


def _floor(spots: Sequence[Spot]) -> float:
    return spots[0].accuracy - DEEP


def _place(spot: Spot, spots: Sequence[Spot]) -> tuple[float, float]:
    return spot.saving, 100 * max(spot.accuracy, _floor(spots))


def _draw_panel(axes: Axes, spots: Sequence[Spot], within: float) -> None:
    best = _best(spots)
    for spot in sorted(spots, key=lambda one: one in best):  # the best on top
        colour = BEST if spot in best else STOPPED if spot.stopped else ALONE
        mark = "o" if spot.accuracy >= _floor(spots) else "v"
        look = STAR if spot.name == OWN else {"color": colour, "marker": mark, "markersize": DOT, "alpha": 0.85}
        axes.plot(*_place(spot, spots), linestyle="", **look)
        if spot.interval is not None and spot.accuracy >= _floor(spots):
            axes.vlines(spot.saving, *(100 * end for end in spot.interval), color=colour, linewidth=0.7, alpha=0.5)
    axes.plot([one.saving for one in best], [100 * one.accuracy for one in best], color=BEST, linewidth=0.8, zorder=0)
    axes.axhline(100 * (spots[0].accuracy - within), **EVEN)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.set_xticks([], minor=True)
    axes.margins(x=0.1)
    full = spots[0].accuracy
    top = max([full + SPAN[1], *(spot.interval[1] + 0.01 for spot in spots if spot.interval is not None)])
    axes.set_ylim(100 * (full - SPAN[0]), 100 * min(1.02, top))
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label_points(axes: Axes, spots: Sequence[Spot], shown: Sequence[Spot], numbers: Mapping[str, int]) -> None:
    """Write numbers next to the `shown` points, clear of all points, the line and each other."""
    scale = POINTS / axes.figure.dpi
    to_page = {spot: _scale(axes.transData.transform(_place(spot, spots)).tolist(), scale) for spot in spots}
    taken = [Box(*to_page[spot], DOT + 1, DOT + 1) for spot in spots]
    for one, other in pairwise(_best(spots)):
        taken += cover_line(to_page[one], to_page[other])
    frame = axes.get_window_extent()
    middle, size = ((frame.x0 + frame.x1) / 2, (frame.y0 + frame.y1) / 2), (frame.width, frame.height)
    inside = Box(*_scale(middle, scale), *_scale(size, scale))
    points = [to_page[spot] for spot in shown]
    sizes = [(4.6 * len(str(numbers[spot.name])) + 2, 8.0) for spot in shown]  # digits in a 7 point font
    for spot, point, box in zip(shown, points, place_labels(points, sizes, inside, taken), strict=True):
        axes.annotate(
            str(numbers[spot.name]),
            _place(spot, spots),
            xytext=(box.x - point[0], box.y - point[1]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "#777777", "shrinkA": 0, "shrinkB": 2},
        )


def _scale(pair: Sequence[float], scale: float) -> tuple[float, float]:
    return scale * pair[0], scale * pair[1]


def _draw_legends(figure: Figure, numbers: Mapping[str, int], within: float) -> None:
    """Draw the legend of the marks above, and that of the numbers below."""
    kinds: dict[str, dict[str, Any]] = {
        "without an early stop": {"color": ALONE, "marker": "o"},
        "with one": {"color": STOPPED, "marker": "o"},
        "nothing is cheaper and better": {"color": BEST, "marker": "o"},
        f"loses more than {100 * DEEP:.0f} points": {"color": ALONE, "marker": "v"},
    }
    if OWN in numbers:
        kinds[OWN] = STAR
    marks: list[Line2D] = [Line2D([], [], linestyle="", **look) for look in kinds.values()]
    marks.append(Line2D([], [], **EVEN))
    meanings = [*kinds, f"{100 * within:g} point{'s' * (within != 0.01)} below full"]
    figure.legend(marks, meanings, loc="outside upper center", ncols=6, fontsize=7.5, frameon=False, columnspacing=1.2)
    names = [f"{number}  {name}" for name, number in numbers.items()]
    blank = [Line2D([], [], linestyle="") for _ in names]
    look: dict[str, Any] = {"fontsize": 7.5, "frameon": False, "handlelength": 0, "handletextpad": 0}
    figure.legend(blank, names, loc="outside lower center", ncols=4, **look)

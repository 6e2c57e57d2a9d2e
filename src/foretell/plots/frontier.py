"""The frontier: accuracy against cost, a point for every way to decode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

DEEP = 0.1  # of the accuracy, that a way may lose and still be drawn in its place
ALONE, STOPPED, BEST = "#8a8a8a", "#3b78b5", "#2e9e4f"


@dataclass(frozen=True, slots=True)
class Spot:
    """One way to decode: how many times less it costs than full decoding, and its accuracy, as a share."""

    name: str
    saving: float
    accuracy: float
    stopped: bool  # whether a stopping rule takes part


def frontier(groups: Mapping[str, Sequence[Spot]], cost: str, within: float, named: Collection[str]) -> Figure:
    """A panel for each task, two in a row, with the `named` ways labelled.

    A line marks `within` (a share) below the first way's accuracy; what loses more than `DEEP` is marked at the bottom.
    """
    rows = -(-len(groups) // 2)
    figure: Figure = plt.figure(figsize=(9.6, 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False).flatten()
    for axes, (task, spots) in zip(panels, groups.items(), strict=False):
        _panel(axes, spots, within, named)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel(f"{cost}, times less than full", fontsize=8)
        axes.set_ylabel("accuracy, %", fontsize=8)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    kinds = {
        "without an early stop": (ALONE, "o"),
        "with one": (STOPPED, "o"),
        "nothing is cheaper and better": (BEST, "o"),
    }
    kinds |= {f"loses more than {100 * DEEP:.0f} points": (ALONE, "v")}
    marks = [Line2D([], [], color=colour, marker=mark, linestyle="") for colour, mark in kinds.values()]
    figure.legend(marks, list(kinds), loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return figure


def undominated(spots: Sequence[Spot]) -> list[Spot]:
    """The spots that no other beats in both, from dear to cheap."""
    kept: list[Spot] = []
    for spot in sorted(spots, key=lambda one: (-one.saving, -one.accuracy)):
        if not kept or spot.accuracy > kept[-1].accuracy:
            kept.append(spot)
    return kept[::-1]


def _panel(axes: Axes, spots: Sequence[Spot], within: float, named: Collection[str]) -> None:
    floor = spots[0].accuracy - DEEP
    best = [spot for spot in undominated(spots) if spot.accuracy >= floor]
    for spot in spots:
        colour = BEST if spot in best else STOPPED if spot.stopped else ALONE
        mark = "o" if spot.accuracy >= floor else "v"
        axes.plot(spot.saving, 100 * max(spot.accuracy, floor), mark, color=colour, markersize=5, alpha=0.85)
    axes.plot([one.saving for one in best], [100 * one.accuracy for one in best], color=BEST, linewidth=1, zorder=0)
    axes.axhline(100 * (spots[0].accuracy - within), color="#c0392b", linewidth=0.8, linestyle=":")
    for index, spot in enumerate(sorted((one for one in spots if one.name in named), key=lambda one: one.saving)):
        below = index % 2 == 1
        axes.annotate(
            spot.name,
            (spot.saving, 100 * max(spot.accuracy, floor)),
            xytext=(0, -10 if below else 8),
            textcoords="offset points",
            ha="center",
            va="top" if below else "bottom",
            fontsize=7,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#777777"},
        )
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.set_xticks([], minor=True)
    axes.margins(x=0.1, y=0.18)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)

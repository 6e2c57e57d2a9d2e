"""The frontier: accuracy against cost, a point for every way to decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

ALONE, STOPPED, BEST = "#8a8a8a", "#3b78b5", "#2e9e4f"


@dataclass(frozen=True, slots=True)
class Spot:
    """One way to decode: how many times less it costs than full decoding, and its accuracy, as a share."""

    name: str
    saving: float
    accuracy: float
    stopped: bool  # whether a stopping rule takes part


def frontier(groups: Mapping[str, Sequence[Spot]], cost: str, within: float) -> Figure:
    """A panel for each task; a line marks `within` (a share) below the first way's accuracy."""
    figure: Figure = plt.figure(figsize=(3.6 * len(groups), 3.6), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False)
    for axes, (task, spots) in zip(panels[0], groups.items(), strict=True):
        _panel(axes, spots, within)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel(f"{cost}, times less than full", fontsize=8)
    panels[0][0].set_ylabel("accuracy, %")
    kinds = {"without an early stop": ALONE, "with one": STOPPED, "nothing is cheaper and better": BEST}
    marks = [Line2D([], [], color=colour, marker="o", linestyle="", markersize=5) for colour in kinds.values()]
    figure.legend(marks, list(kinds), loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


def undominated(spots: Sequence[Spot]) -> list[Spot]:
    """The spots that no other beats in both, from dear to cheap."""
    kept: list[Spot] = []
    for spot in sorted(spots, key=lambda one: (-one.saving, -one.accuracy)):
        if not kept or spot.accuracy > kept[-1].accuracy:
            kept.append(spot)
    return kept[::-1]


def _panel(axes: Axes, spots: Sequence[Spot], within: float) -> None:
    best = undominated(spots)
    for spot in spots:
        colour = BEST if spot in best else STOPPED if spot.stopped else ALONE
        axes.plot(spot.saving, 100 * spot.accuracy, "o", color=colour, markersize=5, alpha=0.85)
    axes.plot([one.saving for one in best], [100 * one.accuracy for one in best], color=BEST, linewidth=1, zorder=0)
    axes.axhline(100 * (spots[0].accuracy - within), color="#c0392b", linewidth=0.8, linestyle=":")
    for index, spot in enumerate(best):
        below = index % 2 == 0
        axes.annotate(
            spot.name,
            (spot.saving, 100 * spot.accuracy),
            xytext=(0, -8 if below else 6),
            textcoords="offset points",
            ha="right",
            va="top" if below else "bottom",
            fontsize=6,
        )
    axes.set_xscale("log")
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)

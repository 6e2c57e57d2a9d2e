"""Plots of the steps that certified stopping rules save, and of how often a chosen rule breaks its promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from foretell.plots import colours

CERTIFIED, NAIVE = colours.BLUE, colours.RED


@dataclass(frozen=True, slots=True)
class RiskPanel:
    """One task: speedups by name with the bound last, and for each risk the share of sets that break the promise."""

    title: str
    speedups: Mapping[str, float]
    certified: Sequence[float]
    naive: Sequence[float]


def plot_risk(panels: Sequence[RiskPanel], risks: Sequence[float], delta: float, shown: float) -> Figure:
    """Plot one column per task: speedups certified at the risk `shown` above, broken promises at every risk below."""
    figure: Figure = plt.figure(figsize=(3.1 * len(panels) + 1.2, 5.4), layout="constrained")
    grid = figure.subplots(2, len(panels), squeeze=False, sharey="row", height_ratios=(1, 1.3))
    for column, panel in enumerate(panels):
        draw_speedups(grid[0, column], panel)
        draw_broken(grid[1, column], panel, risks, delta)
        grid[0, column].set_title(panel.title, fontsize=10)
    grid[0, 0].invert_yaxis()
    grid[0, 0].set_ylabel(f"at most {100 * shown:g}% other answers", fontsize=8)
    grid[1, 0].set_ylabel("calibration sets whose rule\nbreaks its promise, %", fontsize=8)
    handles, labels = grid[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def draw_speedups(axes: Axes, panel: RiskPanel) -> None:
    """Draw one bar per way to stop, the bound in grey, with the speedups as numbers."""
    last = len(panel.speedups) - 1
    for place, (name, speedup) in enumerate(panel.speedups.items()):
        axes.barh(place, speedup, 0.65, color=colours.LIGHT_GREY if place == last else CERTIFIED, label=name)
        axes.annotate(
            f"{speedup:.2f}x", (speedup, place), xytext=(3, 0), textcoords="offset points", va="center", size=8
        )
    axes.set_yticks(range(last + 1), list(panel.speedups))
    axes.set_xlim(0, 1.25 * max(panel.speedups.values()))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.axvline(1, color=colours.LINE, linewidth=0.8, linestyle=":")
    axes.set_xlabel("times fewer steps than full", fontsize=8)
    _style_axes(axes)


def draw_broken(axes: Axes, panel: RiskPanel, risks: Sequence[float], delta: float) -> None:
    """Draw for each risk the share of calibration sets whose chosen rule has a larger one, certified and naive."""
    for offset, shares, colour, name in (
        (-0.2, panel.certified, CERTIFIED, "certified"),
        (0.2, panel.naive, NAIVE, "naive: the fastest rule that kept the risk on the calibration set"),
    ):
        places = [place + offset for place in range(len(risks))]
        bars = axes.bar(places, [100 * share for share in shares], 0.38, color=colour, label=name)
        axes.bar_label(bars, [f"{100 * share:.0f}" for share in shares], fontsize=7, padding=1)
    axes.axhline(100 * delta, color=colours.BLACK, linewidth=0.9, linestyle="--", label=f"allowed: {100 * delta:g}%")
    axes.set_xticks(range(len(risks)), [f"{100 * risk:g}%" for risk in risks])
    axes.set_ylim(0, 100)
    axes.set_xlabel("promised risk", fontsize=8)
    _style_axes(axes)


def _style_axes(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)

"""Risk against speedup along families of stopping rules, with the certified points, and how often certificates hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

COLOURS = (
    "#8a8a8a", "#2e9e4f", "#17a2b8", "#3b78b5", "#7b5ea7", "#f2a33c", "#c0392b", "#5d4037", "#c9a227", "#d6569a",
    "#111111",
)  # fmt: skip
SHARES = (0, 1, 2, 5, 10, 20, 50, 100)  # ticks, in percent
TOP = 1.6  # upper limit of the plot, as a multiple of the largest eps


@dataclass(frozen=True, slots=True)
class Line:
    """One family: risk and speedup of its rules, and of the rule chosen for each eps, averaged over splits."""

    speedups: Sequence[float]  # empty if the rules come from several families
    risks: Sequence[float]  # as shares
    certified: Sequence[tuple[float, float]]  # (speedup, risk) for each eps
    published: tuple[float, float] | None  # (speedup, risk) of the published thresholds
    above: Sequence[float]  # for each eps, the share of drawn calibration sets whose certified rule has a higher risk
    above_naive: Sequence[float]  # the same for the rule that meets eps on the calibration set


@dataclass(frozen=True, slots=True)
class RiskPanel:
    """One task: a line per family."""

    title: str
    lines: Mapping[str, Line]


def plot_risk(panels: Sequence[RiskPanel], asked: Sequence[float], delta: float) -> Figure:
    """Plot one column per task: risk against speedup above, the share of draws above eps below."""
    figure: Figure = plt.figure(figsize=(3.0 * len(panels), 6.0), layout="constrained")
    grid = figure.subplots(2, len(panels), sharey="row", squeeze=False)
    for column, panel in enumerate(panels):
        draw_tradeoff(grid[0, column], panel, asked)
        draw_coverage(grid[1, column], panel, asked, delta)
        grid[0, column].set_title(panel.title, fontsize=9)
    grid[0, 0].set_ylabel("risk, %", fontsize=8)
    grid[1, 0].set_ylabel("draws above eps, %", fontsize=8)
    handles = [Line2D([], [], color=colour, label=name) for name, colour in assign_colours(panels).items()]
    handles += [
        Line2D([], [], color="#333333", marker="o", linestyle="", label="certified"),
        Line2D([], [], color="#333333", marker="x", linestyle="", label="published thresholds"),
        Line2D([], [], color="#333333", marker="o", fillstyle="none", linestyle="", label="naive (below)"),
        Line2D([], [], color="#333333", linestyle="--", linewidth=0.9, label="delta"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=7.5, frameon=False)
    return figure


def assign_colours(panels: Sequence[RiskPanel]) -> dict[str, str]:
    names = dict.fromkeys(name for panel in panels for name in panel.lines)
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}


def draw_tradeoff(axes: Axes, panel: RiskPanel, asked: Sequence[float]) -> None:
    """Draw risk against speedup for every family, with a dotted line at each eps."""
    top = TOP * max(asked)
    reached = [1.0]
    for (name, line), colour in zip(panel.lines.items(), assign_colours([panel]).values(), strict=True):
        axes.plot(line.speedups, [100 * share for share in line.risks], color=colour, linewidth=1.1, label=name)
        xs, ys = zip(*line.certified, strict=True)
        axes.plot(xs, [100 * share for share in ys], "o", color=colour, markersize=4)
        if line.published is not None and line.published[1] <= top:
            axes.plot(line.published[0], 100 * line.published[1], "x", color=colour, markersize=6)
        reached += [speed for speed, share in zip(line.speedups, line.risks, strict=True) if share <= top]
    for eps in asked:
        axes.axhline(100 * eps, color="#999999", linewidth=0.7, linestyle=":")
    axes.set(xlim=(0.97, 1.04 * max(reached)), ylim=(-1.5 * top, 100 * top), xlabel="speedup in steps")
    _style_axes(axes)


def draw_coverage(axes: Axes, panel: RiskPanel, asked: Sequence[float], delta: float) -> None:
    """Draw for each eps every family's share of draws above it: certified filled, naive hollow.

    The axis is linear up to delta, where certified rules should be, and logarithmic above.
    """
    count = len(panel.lines)
    for index, (line, colour) in enumerate(zip(panel.lines.values(), assign_colours([panel]).values(), strict=True)):
        xs = [place + 0.7 * ((index + 0.5) / count - 0.5) for place in range(len(asked))]
        axes.plot(xs, [100 * share for share in line.above], "o", color=colour, markersize=4)
        axes.plot(xs, [100 * share for share in line.above_naive], "o", color=colour, markersize=4, fillstyle="none")
    axes.axhline(100 * delta, color="#333333", linewidth=0.9, linestyle="--")
    axes.set_xticks(range(len(asked)), [f"{100 * eps:g}%" for eps in asked])
    axes.set_yscale("symlog", linthresh=100 * delta)
    axes.set_yticks(SHARES, [str(share) for share in SHARES])
    axes.set_yticks((), minor=True)
    axes.set(ylim=(-0.06 * 100 * delta, 110), xlabel="eps")
    _style_axes(axes)


def _style_axes(axes: Axes) -> None:
    axes.xaxis.label.set_fontsize(8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)

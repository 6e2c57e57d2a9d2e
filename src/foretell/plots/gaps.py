"""Gap plots: how the gap grows for right and wrong answers, and how reliable the gap at the exit is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from foretell.plots import colours
from foretell.policies.stop.schedules import Staged

EDGES = (2.5, 5.0, 7.5, 10.0, 12.5, math.inf)  # the paper's thresholds, continued in steps of the same size
ENDS = {"right": colours.RIGHT, "wrong": colours.WRONG}


@dataclass(frozen=True, slots=True)
class Bin:
    """Exits with a gap in [low, high)."""

    low: float
    high: float
    n: int
    agreed: int

    @property
    def share(self) -> float | None:
        return self.agreed / self.n if self.n else None


@dataclass(frozen=True, slots=True)
class GapPanel:
    """One task: thresholds, curves [T] by reduction and outcome, bins by reduction, intervals of the bins' shares."""

    title: str
    budget: int
    tau: Staged
    curves: Mapping[str, Mapping[str, Sequence[Tensor]]]
    bins: Mapping[str, Sequence[Bin]]
    intervals: Mapping[str, Sequence[tuple[float, float] | None]]


def quantile_band(curves: Sequence[Tensor], quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> Tensor:
    """Return quantiles over the curves [T] at each step, ignoring curves that ended or are infinite there. [Q, T]"""
    stacked = torch.full((len(curves), max(map(len, curves))), math.nan)
    for row, curve in zip(stacked, curves, strict=True):
        row[: len(curve)] = torch.where(curve.isfinite(), curve, math.nan)
    return stacked.nanquantile(torch.tensor(quantiles), dim=0)


def bin_exits(exits: Sequence[tuple[float, bool]], edges: Sequence[float] = EDGES) -> list[Bin]:
    """Sort exits, (gap, agreed), into bins by their gap; gaps below the first edge count in the first bin."""
    made = []
    for index, (low, high) in enumerate(pairwise(edges)):
        inside = [same for gap, same in exits if (gap >= low or index == 0) and gap < high]
        made.append(Bin(low, high, len(inside), sum(inside)))
    return made


def plot_gaps(panels: Sequence[GapPanel]) -> Figure:
    """Plot one column per task: the mean gap, the minimum, and agreement with full decoding by the gap at the exit."""
    figure: Figure = plt.figure(figsize=(2.35 * len(panels), 5.9), layout="constrained")
    grid = figure.subplots(3, len(panels), sharey="row", squeeze=False)
    for column, panel in enumerate(panels):
        for row, reduction in enumerate(("mean", "min")):
            _draw_growth(grid[row, column], panel, reduction)
        _draw_reliability(grid[2, column], panel)
        grid[0, column].set_title(panel.title, fontsize=8.5)
    for row, label in enumerate(("mean gap of the region", "minimum gap", "agrees with full, %")):
        grid[row, 0].set_ylabel(label, fontsize=8)
        grid[row, 0].set_ylim(bottom=0)  # last, because it turns off autoscaling for the whole row
    handles, labels = grid[0, 0].get_legend_handles_labels()
    others, names = grid[2, 0].get_legend_handles_labels()
    keys = dict(zip(labels + names, handles + others, strict=True))
    figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=len(keys), fontsize=8, frameon=False)
    return figure


def _draw_growth(axes: Axes, panel: GapPanel, reduction: str) -> None:
    for end, curves in panel.curves[reduction].items():
        colour = ENDS[end]
        if not curves:
            axes.plot([], [], color=colour, label=f"ends {end}: median, 10-90%")
            continue
        low, median, high = quantile_band(curves)
        at = 100 * torch.arange(len(median)) / panel.budget
        axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(at, median, color=colour, linewidth=1.4, label=f"ends {end}: median, 10-90%")
    p = torch.linspace(0, 1, 301)
    axes.plot(100 * p, panel.tau(p), color=colours.LINE, linewidth=1.0, linestyle="--", label="threshold")
    axes.set(xlim=(0, 100), xticks=(0, 25, 50, 75, 100))
    axes.set_xlabel("% of the budget" if reduction == "min" else "", fontsize=8)
    _style_axes(axes)


def _draw_reliability(axes: Axes, panel: GapPanel) -> None:
    for offset, (reduction, bins) in zip((-0.12, 0.12), panel.bins.items(), strict=True):
        found = [(place, one, panel.intervals[reduction][place]) for place, one in enumerate(bins) if one.n]
        shares = [100 * (one.share or 0.0) for _, one, _ in found]
        reach = [[abs(share - 100 * end[side]) for share, (_, _, end) in zip(shares, found, strict=True) if end]
                 for side in (0, 1)]  # fmt: skip
        xs = [place + offset for place, _, _ in found]
        axes.errorbar(
            xs,
            shares,
            reach,
            color=colours.REDUCTIONS[reduction],
            marker="o",
            markersize=4,
            linewidth=1.1,
            elinewidth=0.8,
        )
        axes.lines[-1].set_label(f"exits by the {reduction}")
    names = [f"{low:g}+" for low, _ in pairwise(EDGES)]
    axes.set_xticks(range(len(names)), names)
    axes.set(ylim=(0, 104), xlim=(-0.5, len(names) - 0.5))
    axes.set_xlabel("gap at the exit", fontsize=8)
    _style_axes(axes)


def _style_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)

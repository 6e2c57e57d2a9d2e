"""Judge plots: the importance of its features, and its certified speedup compared with other rules."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretell.plots.colours import LINE, PALE, colours_of

Table = Mapping[str, Mapping[str, float]]


def plot_judge(looks: Table, speedups: Table, risk: float) -> Figure:
    """Plot `looks` (task -> feature -> rise of the log loss) and `speedups` (task -> rule -> certified at `risk`)."""
    figure: Figure = plt.figure(figsize=(10.0, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_importances(left, looks)
    draw_bars(right, speedups, risk)
    return figure


def draw_importances(axes: Axes, looks: Table) -> None:
    """Draw one row per feature, the most important first, with one dot per task."""
    names = sorted(next(iter(looks.values())), key=lambda name: sum(task[name] for task in looks.values()))
    for index, ((task, found), colour) in enumerate(zip(looks.items(), colours_of(looks).values(), strict=True)):
        places = [place - 0.7 * ((index + 0.5) / len(looks) - 0.5) for place in range(len(names))]
        axes.plot([found[name] for name in names], places, "o", color=colour, markersize=3, label=task)
    axes.set_yticks(range(len(names)), names)
    axes.axvline(0, color=LINE, linewidth=0.7)
    axes.set_xlabel("rise of the log loss when shuffled, nats", fontsize=8)
    axes.set_title("what the judge looks at", fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    for place in range(len(names) - 1):
        axes.axhline(place + 0.5, color=PALE, linewidth=0.8, zorder=0)
    axes.set_ylim(-0.6, len(names) - 0.4)
    _style_axes(axes)


def draw_bars(axes: Axes, speedups: Table, risk: float) -> None:
    """Draw one group of bars per task, one bar per rule."""
    rules = list(next(iter(speedups.values())))
    width = 0.8 / len(rules)
    for index, (rule, colour) in enumerate(colours_of(rules).items()):
        places = [place + width * (index + 0.5) - 0.4 for place in range(len(speedups))]
        axes.bar(places, [task[rule] for task in speedups.values()], width, color=colour, label=rule)
    axes.axhline(1, color=LINE, linewidth=0.7)
    axes.set_xticks(range(len(speedups)), list(speedups))
    axes.set_ylabel("times fewer steps than full", fontsize=8)
    axes.set_title(f"certified speedup at a risk of {100 * risk:g}%", fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    _style_axes(axes)


def _style_axes(axes: Axes) -> None:
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)

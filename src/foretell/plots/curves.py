"""Training curves: loss and held-out accuracy per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from foretell.plots.colours import colours_of


def plot_curves(log: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot the lines of a training log: `loss` and `accuracy` by task, each with its step."""
    figure: Figure = plt.figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, kind in ((left, "loss"), (right, "accuracy")):
        lines = [line for line in log if kind in line]
        for task, colour in colours_of(name for line in lines for name in line[kind]).items():
            points = [(line["step"], line[kind][task]) for line in lines if task in line[kind]]
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.2, marker="." if kind == "accuracy" else "")
            axes.lines[-1].set_label(task)
        axes.set(xlabel="step", ylabel=kind)
        axes.legend(fontsize=8, frameon=False)
    left.set_yscale("log")
    right.set_ylim(0, 1.02)
    return figure

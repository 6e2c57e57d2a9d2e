"""Decoding dynamics: what happened at every position and step of a full decoding, and where a rule would stop.

Steps are counted from 1, as in all output for readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from foretell.engine.trace import Trace
from foretell.plots import colours
from foretell.policies.stop.prophet import Prophet

KINDS = {
    "draft as before": colours.PALE,
    "draft changed": colours.ORANGE,
    "filled": colours.BLUE,
    "filled before": colours.LIGHT_BLUE,
}
ANSWER, COMMIT = colours.GREEN, colours.RED
GAP: dict[str, Any] = {"color": colours.BLACK, "linewidth": 1.4}
BAR: dict[str, Any] = {"color": colours.LINE, "linewidth": 1.2, "linestyle": "--", "drawstyle": "steps-post"}
DIM = 0.6  # opacity of the white cover over the steps after the stop


def classify_positions(trace: Trace) -> Tensor:
    """Return what happened at each step and position, as an index into KINDS. [T, N]"""
    step = torch.arange(len(trace))[:, None]
    changed = torch.ones_like(trace.tokens, dtype=torch.bool)
    changed[1:] = trace.tokens[1:] != trace.tokens[:-1]
    kind = changed.long()
    kind[trace.filled_at < step] = 3
    kind[trace.filled_at == step] = 2
    return kind


def draw_heatmap(axes: Axes, trace: Trace, title: str, end: int | None) -> None:
    """Draw steps from left to right, positions from top to bottom, a box around the answer. Dim steps after `end`."""
    steps, length = trace.tokens.shape
    look: dict[str, Any] = {
        "cmap": ListedColormap(list(KINDS.values())),
        "vmin": 0,
        "vmax": 3,
        "interpolation": "nearest",
    }
    axes.imshow(
        classify_positions(trace).T.numpy(), aspect="auto", extent=(0.5, steps + 0.5, length - 0.5, -0.5), **look
    )
    if end is not None:
        axes.axvspan(end + 1.5, steps + 0.5, color="white", alpha=DIM, linewidth=0)
        axes.axvline(end + 1.5, color=COMMIT, linewidth=1.2)
    answer = trace.place().nonzero().squeeze(1).tolist()
    if answer:
        corner, height = (0.5, answer[0] - 0.5), answer[-1] - answer[0] + 1
        axes.add_patch(Rectangle(corner, steps, height, fill=False, edgecolor=ANSWER, linewidth=1.6, clip_on=False))
    axes.set(title=title, xlabel="step", ylabel="position", xlim=(0.5, steps + 0.5))


def draw_gap(axes: Axes, trace: Trace, rule: Prophet, end: int | None) -> None:
    """Draw the region's gap against tau(p), and the step at which the rule stops; later steps are dimmed."""
    verdict = rule(trace, trace.states())
    value, bar = verdict.value, verdict.bar
    assert value is not None
    assert bar is not None
    steps = range(1, len(trace) + 1)
    shown = torch.where(value.isfinite(), value, torch.nan)
    axes.plot(steps, shown.numpy(), **GAP)
    axes.plot(steps, bar.numpy(), **BAR)
    axes.set(xlabel="step", ylabel="logit gap", xlim=(0.5, len(trace) + 0.5))
    axes.set_ylim(bottom=0)
    if end is not None:
        axes.axvspan(end + 1.5, len(trace) + 0.5, color="white", alpha=DIM, linewidth=0, zorder=2.5)
        axes.axvline(end + 1.5, color=COMMIT, linewidth=1.2)
    ends = "the rule never stops" if end is None else f"the rule stops at step {end + 1} of {len(trace)}"
    axes.set_title(ends, fontsize=9, color=COMMIT)


def plot_dynamics(traces: Sequence[tuple[str, Trace]], rule: Prophet) -> Figure:
    """Plot one column per trace: heatmap above, gap below. Steps after the stop are dimmed."""
    figure: Figure = plt.figure(figsize=(5.2 * len(traces), 5.8), layout="constrained")
    axes = figure.subplots(2, len(traces), height_ratios=(3, 1.3), squeeze=False)
    for column, (title, trace) in enumerate(traces):
        end = trace.replay(rule)
        draw_heatmap(axes[0, column], trace, title, end)
        draw_gap(axes[1, column], trace, rule, end)
    keys: list[Artist] = [Patch(color=color, label=name) for name, color in KINDS.items()]
    keys += [
        Patch(fill=False, edgecolor=ANSWER, label="answer region"),
        Line2D([], [], color=COMMIT, label="early commit; dim: later steps of full decoding"),
        Line2D([], [], **GAP, label=f"gap, {rule.reduce} over the answer"),
        Line2D([], [], **BAR, label="threshold"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure

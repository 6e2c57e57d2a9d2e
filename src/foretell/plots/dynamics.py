"""Decoding dynamics: what every position did at every step, and the gap on its way to the threshold."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from foretell.engine.trace import Trace
from foretell.policies.stop.prophet import Prophet

KINDS = {"draft as before": "#e3e3e3", "draft changed": "#f2a33c", "filled": "#3b78b5", "filled before": "#bcd3e8"}
ANSWER, COMMIT = "#2e9e4f", "#c0392b"


def activity(trace: Trace) -> Tensor:
    """What happened, as an index into KINDS. [T, N]"""
    step = torch.arange(len(trace))[:, None]
    changed = torch.ones_like(trace.tokens, dtype=torch.bool)
    changed[1:] = trace.tokens[1:] != trace.tokens[:-1]
    kind = changed.long()
    kind[trace.filled_at < step] = 3
    kind[trace.filled_at == step] = 2
    return kind


def heatmap(axes: Axes, trace: Trace, title: str) -> None:
    """Steps from left to right, positions from top to bottom, a box around the answer."""
    axes.imshow(activity(trace).T.numpy(), aspect="auto", cmap=ListedColormap(list(KINDS.values())), vmin=0, vmax=3)
    answer = trace.place().nonzero().squeeze(1).tolist()
    if answer:
        corner, height = (-0.5, answer[0] - 0.5), answer[-1] - answer[0] + 1
        axes.add_patch(
            Rectangle(corner, len(trace), height, fill=False, edgecolor=ANSWER, linewidth=1.6, clip_on=False)
        )
    axes.set(title=title, xlabel="step", ylabel="position")


def gap(axes: Axes, trace: Trace, rule: Prophet) -> None:
    """The region's gap against tau(p), and the step at which the rule fires."""
    verdict = rule(trace, trace.states())
    value, bar = verdict.value, verdict.bar
    assert value is not None
    assert bar is not None
    shown = torch.where(value.isfinite(), value, torch.nan)
    axes.plot(shown.numpy(), color="#222222", linewidth=1.4, label=f"{rule.reduce} gap of the answer")
    axes.plot(bar.numpy(), color="#888888", linewidth=1.2, linestyle="--", drawstyle="steps-post", label="threshold")
    fires = trace.replay(rule)
    if fires is not None:
        axes.axvline(fires, color=COMMIT, linewidth=1.2, label=f"settled at step {fires + 1} of {len(trace)}")
    axes.set(xlabel="step", ylabel="logit gap", xlim=(-0.5, len(trace) - 0.5))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False)


def dynamics(traces: Sequence[tuple[str, Trace]], rule: Prophet) -> Figure:
    """One column a trace: its heatmap above, its gap below."""
    figure: Figure = plt.figure(figsize=(5.2 * len(traces), 5.6), layout="constrained")
    axes = figure.subplots(2, len(traces), height_ratios=(3, 1.3), squeeze=False)
    for column, (title, trace) in enumerate(traces):
        heatmap(axes[0, column], trace, title)
        gap(axes[1, column], trace, rule)
    keys = [Patch(color=color, label=name) for name, color in KINDS.items()]
    keys.append(Patch(fill=False, edgecolor=ANSWER, label="answer region"))
    figure.legend(handles=keys, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure

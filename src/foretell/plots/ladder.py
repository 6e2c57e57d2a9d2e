"""The frontier of a tuned file: the risk of each rung against its speedup, with what was tried on the pilot."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from foretell.engine.certificate import Certificate
from foretell.plots import colours

PASSED, FAILED, ALONE, TRIED = colours.GREEN, colours.RED, colours.BLUE, colours.LIGHT_GREY


def plot_ladder(found: Certificate) -> Figure:
    """Plot the rungs that were tested with 95% intervals, the transfer alone, and the promised risk as a line."""
    report = found.report or {}
    figure: Figure = plt.figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    tried = report.get("tried", ())
    axes.scatter(
        [one["speedup"] for one in tried], [100 * one["risk"] for one in tried], s=14, color=TRIED, zorder=1,
        label="tried on the pilot, one rung per ladder",
    )  # fmt: skip
    for certified, colour, name in ((True, PASSED, "certified"), (False, FAILED, "not certified")):
        rows = [one for one in report.get("frontier", ()) if one["certified"] is certified]
        if rows:
            _draw_points(axes, rows, colour, name)
    alone = report.get("transfer_alone")
    if alone and alone["stops"]:
        _draw_points(axes, [alone], ALONE, "the certified recipe without its stopping rule")
    axes.axhline(100 * found.risk, color=colours.LINE, linewidth=0.9, linestyle=":")
    axes.annotate(f"risk {found.risk:.2%}", (1.0, 100 * found.risk), xycoords=("axes fraction", "data"), ha="right",
                  va="bottom", fontsize=8, color=colours.LINE)  # fmt: skip
    axes.set_xlabel(f"speedup, times fewer {found.cost} than full decoding")
    axes.set_ylabel(f"mean loss ({found.loss}), %")
    axes.set_ylim(bottom=0, top=max(3 * 100 * found.risk, 1.2 * 100 * max(_risks(report), default=0.01)))
    axes.set_xlim(left=1)
    axes.set_title(f"{found.model}, {found.task or 'your examples'}, n = {found.examples}", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_points(axes: plt.Axes, rows: list[dict[str, float]], colour: str, name: str) -> None:
    xs, ys = [one["speedup"] for one in rows], [100 * one["risk"] for one in rows]
    lows = [100 * (one["risk"] - one["interval"][0]) for one in rows]  # type: ignore[index]
    highs = [100 * (one["interval"][1] - one["risk"]) for one in rows]  # type: ignore[index]
    axes.errorbar(xs, ys, yerr=[lows, highs], fmt="o", color=colour, markersize=5, capsize=2, label=name, zorder=3)


def _risks(report: dict[str, list[dict[str, float]]]) -> list[float]:
    """Return the upper ends of the intervals of all tested rungs."""
    return [one["interval"][1] for one in report.get("frontier", ())]  # type: ignore[index]

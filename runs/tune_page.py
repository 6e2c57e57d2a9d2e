"""The page and the picture of runs/tune.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from text_page import prose, publish, table

WAYS = ("stopping rules alone", "transfer alone", "tune")
COLOURS = {"stopping rules alone": "#8a8a8a", "transfer alone": "#3b78b5", "tune": "#2e9e4f"}


def write_page(
    tasks: dict[str, Any],
    antibodies: dict[str, Any],
    goals: dict[str, float],
    antibody_goals: dict[float, float],
    options: argparse.Namespace,
) -> None:
    tasks = {task: found for task, found in tasks.items() if found["rows"]}
    antibodies = {name: found for name, found in antibodies.items() if found}
    models = f" --antibody-models {' '.join(antibodies)} --models DIR --data DIR" if antibodies else ""
    lines = [
        "# Tune: certified speedups, and whether the promised risk is kept",
        "",
        prose(
            f"Bundled model. A pool of {options.pool} independent problems per task, split up to {options.splits} "
            f"times into {options.pilot} for the pilot, "
            f"{options.calibration} for calibration and the others, which are held out. "
            "Loss: another answer than full decoding. Confidence 95%, first look (error probability 4%). Speedups "
            "count forwards on the held-out problems.",
            _describe_gaps(tasks, options),
            f"`python runs/tune.py --page{models}`",
        ),
        "",
        "## At 1% and 95%",
        *table(
            ("task", "goal", "sets that reach it", "mean over sets", "sets with a risk above 1%"),
            [_goal_row(one, goals[task]) for task, found in tasks.items() for one in _at_one(found["draws"], options)],
            1,
        ),
        prose(
            "1000 calibration sets are drawn with replacement from the pool without the first split's pilot, and the "
            "first split's ladder is certified on each. The risk of every rung over the pool is known, so the share of "
            "sets that certify a rung above 1% is known too; it must be at most 5%."
        ),
        "",
        "## The transfer alone, and what early commit adds",
        *table(
            ("task", *(f"{way}: {what}" for way in WAYS for what in ("forwards", "clock")), "early commit adds"),
            [_lever_row(row, found["live"]) for found in tasks.values() for row in _at_one(found["rows"], options)],
            1,
        ),
        prose(
            "At 1%, first split. Most of the speed comes from filling several masks per step, which the transfer does "
            "alone; the last column says how much faster the tuned recipe is than that. Each way is "
            "certified by itself. Clock: processor time of full decoding divided by that of the recipe, one thread, in "
            f"turns, on the first held-out problems. {_describe_live(tasks)}"
        ),
        "",
        "## Every risk",
        *table(
            ("task", "risk", "splits", *WAYS, "tune: held-out risk, % (95%)"),
            [row for found in tasks.values() for row in _way_rows(found["rows"])],
        ),
        prose(
            "Speedup of the certified recipe on the held-out problems, mean over the splits; 1.00x means that nothing "
            "is certified. The last column is the risk "
            "of each split's tuned recipe on its held-out problems, with an exact interval. Splits overlap, so "
            "their risks are not independent."
        ),
        "",
        "## Does delta hold?",
        *table(
            ("task", "risk", "sets above the risk, %", "sets without a certificate, %", "rungs: speedup (risk, %)"),
            [_draw_row(one) for found in tasks.values() for one in found["draws"]],
        ),
        prose(
            "The same draws for every risk. A set is above the risk if the rung that it certifies has a larger risk "
            "over the pool; at most 5% may be."
        ),
    ]
    if antibodies:
        lines += _antibody_lines(antibodies, antibody_goals)
    publish("tune", lines, {"tasks": tasks, "antibodies": antibodies}, options, plot_ways(tasks) if tasks else None)


def _describe_gaps(tasks: dict[str, Any], options: argparse.Namespace) -> str:
    """Say what is not measured."""
    wanted = options.splits * len(options.risks)
    gaps = [f"{task} {len(found['rows'])}" for task, found in tasks.items() if len(found["rows"]) < wanted]
    gaps += [f"{task} 0" for task in options.tasks if task not in tasks]
    return f"Not all {wanted} pairs of split and risk are measured: {', '.join(gaps)}." if gaps else ""


def _at_one(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the row of the first split at 1%, or at the nearest risk that was asked for, if it is measured."""
    risk = min(options.risks, key=lambda one: abs(one - 0.01))
    return [one for one in rows if one.get("split", 0) == 0 and one["eps"] == risk]


def _goal_row(draw: dict[str, Any], goal: float) -> list[str]:
    return [draw["task"], f"{goal:g}x", f"{draw['goal']:.1%}", f"{draw['mean']:.2f}x", f"{draw['above']:.1%}"]


def _lever_row(row: dict[str, Any], live: dict[str, Any] | None) -> list[str]:
    speeds = {way: row["ways"][way]["speedup"] for way in WAYS}
    cells = [
        text
        for way in WAYS
        for text in (f"{speeds[way]:.2f}x", f"{live['clock'][way]:.2f}x" if live else "not measured")
    ]
    return [row["task"], *cells, f"{speeds['tune'] / speeds['transfer alone'] - 1:+.1%}"]


def _describe_live(tasks: dict[str, Any]) -> str:
    live = [found["live"] for found in tasks.values() if found["live"]]
    if not live:
        return ""
    same, compared = (sum(one[name] for one in live) for name in ("same", "compared"))
    return f"These {live[0]['n']} per task, decoded live, equal their replays in {same} of {compared} cases."


def _way_rows(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    made = []
    for risk in dict.fromkeys(one["eps"] for one in rows):
        mine = [one for one in rows if one["eps"] == risk]
        means = [f"{np.mean([one['ways'][way]['speedup'] for one in mine]):.2f}x" for way in WAYS]
        held = [one["ways"]["tune"] for one in mine]
        shown = "; ".join(
            f"{100 * one['risk']:.2f} ({100 * one['interval'][0]:.2f} to {100 * one['interval'][1]:.2f})"
            for one in held
        )
        made.append([mine[0]["task"], f"{risk:.1%}", str(len(mine)), *means, shown])
    return made


def _draw_row(one: dict[str, Any]) -> list[str]:
    rungs = ", ".join(f"{speed:.1f}x ({100 * risk:.2f})" for speed, risk in one["rungs"])
    return [one["task"], f"{one['eps']:.1%}", f"{100 * one['above']:.1f}", f"{100 * one['nothing']:.1f}", rungs]


def _antibody_lines(antibodies: dict[str, Any], goals: dict[float, float]) -> list[str]:
    rows = []
    for name, found in antibodies.items():
        for risk, goal in goals.items():
            mine = [one for one in found if one["eps"] == risk]
            if not mine:
                continue
            speeds = [one["speedup"] for one in mine]
            reached = np.mean([one >= goal for one in speeds])
            risks = [100 * one["risk"] for one in mine]
            lost = sum(one["recovery"][0] < one["full_recovery"][1] for one in mine)
            recovered = np.mean([[one["full_recovery"][0], one["recovery"][0]] for one in mine], axis=0)
            sizes = " + ".join(map(str, mine[0]["sizes"]))
            rows.append(
                [
                    name, f"{risk:.0%}", f"{sizes} + {mine[0]['n']}", f"{goal:g}x",
                    f"{reached:.0%} of {len(mine)}",
                    f"{np.mean(speeds):.2f}x ({min(speeds):.2f} to {max(speeds):.2f})",
                    f"{np.mean(risks):.2f} ({min(risks):.2f} to {max(risks):.2f})",
                    f"{100 * recovered[0]:.1f}, {100 * recovered[1]:.1f}", str(lost),
                ]
            )  # fmt: skip
    headings = (
        "model", "risk", "pilot + calibration + held out", "goal", "splits that reach it", "speedup (range)",
        "held-out risk, % (range)", "recovery full, tuned, %", "below full's interval",
    )  # fmt: skip
    return [
        "",
        "## Antibody models by others",
        "",
        prose(
            "Half of the residues are masked. Loss: the share of masked residues that differ from full decoding. Every "
            "split draws its own pilot and calibration set; speedup, risk and recovery are of the held-out antibodies. "
            "The last column counts splits in which the tuned recipe's recovery is below full decoding's 95% interval."
        ),
        *table(headings, rows),
    ]


def plot_ways(tasks: dict[str, Any]) -> Figure:
    """Plot the certified speedup against the allowed risk, one panel per task and one line per way."""
    figure: Figure = plt.figure(figsize=(9.6, 2.9), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, (task, found) in zip(panels, tasks.items(), strict=True):
        risks = list(dict.fromkeys(one["eps"] for one in found["rows"]))
        for way in WAYS:
            speeds = [[one["ways"][way]["speedup"] for one in found["rows"] if one["eps"] == risk] for risk in risks]
            places = range(len(risks))
            axes.plot(places, [np.mean(one) for one in speeds], "o-", color=COLOURS[way], label=way, markersize=4)
            axes.vlines(places, [min(one) for one in speeds], [max(one) for one in speeds], color=COLOURS[way])
        axes.set_xticks(range(len(risks)), [f"{risk:.1%}" for risk in risks], fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("allowed risk", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("certified speedup, times fewer forwards", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure

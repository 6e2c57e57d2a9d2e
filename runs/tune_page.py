"""The tables and the picture of runs/tune.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from page import Numbers, number, percent, times

WAYS = ("stopping rules alone", "transfer alone", "tune")
COLOURS = {"stopping rules alone": "#8a8a8a", "transfer alone": "#3b78b5", "tune": "#2e9e4f"}
GOALS = {"sudoku": 13.0, "choice": 9.0, "word": 6.0, "countdown": 3.0}  # certified speedups
WEAK = 0.2  # share of sets without a certificate that the page points out
ANTIBODY_GOALS = {0.02: 2.2, 0.03: 4.4, 0.05: 8.0}  # certified speedup by risk
WITH_GOALS = ("sapiens-vh", "sapiens-vl")
AT = 0.01  # the risk of the goals
Row = Mapping[str, Any]


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of all tables, what is not measured, and what was decoded live."""
    settings, tasks = numbers["settings"], numbers["tasks"]
    risk = find_goal_risk(settings["risks"])
    firsts = [[one for one in found["rows"] if (one["split"], one["eps"]) == (0, risk)] for found in tasks.values()]
    draws = [one for found in tasks.values() for one in found["draws"]]
    lives = [found["live"] for found in tasks.values()]
    pairs = settings["splits"] * len(settings["risks"])
    counts = {task: len(found["rows"]) for task, found in tasks.items()}
    counts |= {task: 0 for task in settings["tasks"] if task not in tasks}
    return {
        "pairs": pairs,
        "gaps": [(task, count) for task, count in counts.items() if count < pairs],
        "live": [one for one in lives if one],
        "goal_rows": [_goal_row(one) for one in draws if one["eps"] == risk],
        "lever_rows": [_lever_row(one, live) for first, live in zip(firsts, lives, strict=True) for one in first],
        "way_rows": [row for found in tasks.values() for row in _way_rows(found["rows"])],
        "draw_rows": [_draw_row(one) for one in draws],
        "weak": [f"{one['task']} at {one['eps']:.1%}" for one in draws if one["nothing"] > WEAK],
        "antibody_rows": [
            _antibody_row(name, mine, goal)
            for name, found in numbers["antibodies"].items()
            for risk, goal in ANTIBODY_GOALS.items()
            if (mine := [one for one in found if one["eps"] == risk])
        ],
    }


def find_goal_risk(risks: Sequence[float]) -> float:
    """Return 1%, or the nearest risk of those that are measured."""
    return min(risks, key=lambda one: abs(one - AT))


def _goal_row(draw: Row) -> list[str]:
    goal = f"{GOALS[draw['task']]:g}x"
    return [draw["task"], goal, f"{draw['goal']:.1%}", times(draw["mean"]), f"{draw['above']:.1%}"]


def _lever_row(row: Row, live: Row | None) -> list[str]:
    speeds = {way: row["ways"][way]["speedup"] for way in WAYS}
    clocks = {way: times(live["clock"][way]) if live else "not measured" for way in WAYS}
    cells = [text for way in WAYS for text in (times(speeds[way]), clocks[way])]
    return [row["task"], *cells, f"{speeds['tune'] / speeds['transfer alone'] - 1:+.1%}"]


def _way_rows(rows: Sequence[Row]) -> list[list[str]]:
    made = []
    for risk in dict.fromkeys(one["eps"] for one in rows):
        mine = [one["ways"] for one in rows if one["eps"] == risk]
        means = [times(float(np.mean([ways[way]["speedup"] for ways in mine]))) for way in WAYS]
        held = "; ".join(
            "{} ({} to {})".format(*(number(100 * one, 2) for one in (tuned["risk"], *tuned["interval"])))
            for tuned in (ways["tune"] for ways in mine)
        )
        made.append([rows[0]["task"], f"{risk:.1%}", str(len(mine)), *means, held])
    return made


def _draw_row(one: Row) -> list[str]:
    rungs = ", ".join(f"{speed:.1f}x ({100 * risk:.2f})" for speed, risk in one["rungs"])
    return [one["task"], f"{one['eps']:.1%}", percent(one["above"]), percent(one["nothing"]), rungs]


def _antibody_row(name: str, splits: Sequence[Row], goal: float) -> list[str]:
    """Return the row of one model and risk."""
    speeds, risks = [one["speedup"] for one in splits], [100 * one["risk"] for one in splits]
    sizes = " + ".join(map(str, (*splits[0]["sizes"], splits[0]["n"])))
    lost = sum(one["recovery"][0] < one["full_recovery"][1] for one in splits)
    recovered = [float(np.mean([one[key][0] for one in splits])) for key in ("full_recovery", "recovery")]
    reached = f"{np.mean([one >= goal for one in speeds]):.0%} of {len(splits)}"
    aimed = [f"{goal:g}x", reached] if name in WITH_GOALS else ["none", f"{len(splits)} measured"]
    return [
        name, f"{splits[0]['eps']:.0%}", sizes, *aimed,
        f"{np.mean(speeds):.2f}x ({min(speeds):.2f} to {max(speeds):.2f})",
        f"{np.mean(risks):.2f} ({min(risks):.2f} to {max(risks):.2f})",
        ", ".join(map(percent, recovered)), str(lost),
    ]  # fmt: skip


def draw(numbers: Numbers) -> Figure | None:
    """Plot the certified speedup against the allowed risk, one panel per task and one line per way."""
    tasks = numbers["tasks"]
    if not tasks:
        return None
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

"""The tables and the picture of runs/decide.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from decide_numbers import SPLITS
from foretell.plots.colours import BLUE, GREY, RED
from page import Numbers, change, number, percent, points, spread

GOALS = {"choice": 3.0, "word": 5.0}  # forward passes
LOSS, ERROR, FASTER = 0.005, 0.02, 3.0  # largest loss of accuracy, largest calibration error, least speedup of the head
CALIBRATION = 500  # problems that the temperatures and quantiles of the ways are learned from
Part = Mapping[str, Any]


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the tables of the parts that were measured, and what decides on the goals."""
    rows, calibrated, certified, heads = (
        numbers.get(part) or [] for part in ("rows", "calibrated", "certified", "heads")
    )
    done = {one["task"] for one in calibrated}
    return {
        "loss": LOSS,
        "error": ERROR,
        "faster": FASTER,
        "splits": SPLITS,
        "calibration": numbers.get("calibration") or CALIBRATION,
        "within": lambda share, ends: ends[0] <= share <= ends[1],
        "accuracy_goals": _accuracy_goals(rows),
        "uncalibrated": [one for one in rows if one["way"] == "default" and one["task"] not in done],
        "tasks": [_task(mine, numbers["clocks"][task]) for task, mine in by_task(rows).items()],
        "certified": certified,
        "certified_rows": [_certified_row(one) for one in certified],
        "tuned": numbers.get("command"),
        "calibrated": calibrated,
        "calibrated_rows": [_calibrated_row(one) for one in calibrated],
        "set_rows": [_set_row(one) for one in calibrated],
        "heads": heads,
        "head_rows": [
            [str(one["positions"]), number(one["all"]), number(one["labels"], 2), number(one["all"] / one["labels"], 0)]
            for one in heads
        ],
        "least": min((one["all"] / one["labels"] for one in heads), default=None),
    }


def by_task(rows: Sequence[Part]) -> dict[str, list[Part]]:
    return {task: [row for row in rows if row["task"] == task] for task in dict.fromkeys(row["task"] for row in rows)}


def _accuracy_goals(rows: Sequence[Part]) -> list[dict[str, Any]]:
    """Return, for each goal, the way that is best within its forward passes."""
    goals = []
    for task, most in GOALS.items():
        mine = [row for row in rows if row["task"] == task and row["forwards"] <= most]
        if mine:
            best = max(mine, key=lambda row: row["difference"])
            goals.append({"task": task, "most": most, "best": best, "met": best["difference"] >= -LOSS})
    return goals


def _task(rows: Sequence[Part], clock: Mapping[str, float]) -> dict[str, Any]:
    """Return the section of a task: one row per way."""
    return {name: rows[0][name] for name in ("task", "problems", "questions")} | {
        "rows": [_way_row(row, clock["full"] / clock[row["way"]]) for row in rows],
        "recipes": [(row["way"], row["recipe"]) for row in rows],
    }


def _way_row(row: Part, faster: float) -> list[str]:
    learned = ["-"] * 2, ["-"] * 4
    if row["temperature"] is not None:
        covered = percent(row["covered"]), spread(row["covered_interval"]), percent(row["mean_covered"])
        learned = [number(row["temperature"], 2), number(row["error_after"], 3)], [*covered, number(row["size"], 2)]
    return [
        row["way"], percent(row["accuracy"]), spread(row["interval"]), _difference(row), percent(row["changed"]),
        number(row["forwards"], 2), f"{faster:.1f}x", number(row["error"], 3), *learned[0], *learned[1],
    ]  # fmt: skip


def _difference(row: Part) -> str:
    return f"{change(row['difference'])} ({points(row['difference_interval'])})"


def _certified_row(one: Part) -> list[str]:
    start = [one["task"], f"{one['risk']:.0%}", f"{one['pilot']}, {one['calibration']}"]
    if one["recipe"] is None:
        return [*start, "nothing", *"-" * 6]
    return [
        *start, f"{one['speedup']:.2f}x", f"{one['changed']} of {one['problems']}",
        f"{percent(one['changed'] / one['problems'])} ({spread(one['interval'])})", number(one["forwards"], 2),
        number(one["full_forwards"], 2), percent(one["accuracy"]), _difference(one),
    ]  # fmt: skip


def _calibrated_row(one: Part) -> list[str]:
    answers = "" if one["questions"] == one["tested"] else f" ({one['questions']} answers)"
    return [
        one["task"], f"{one['tested']}{answers}", percent(one["accuracy"]), number(one["error"], 3),
        number(one["temperature"], 2), number(one["error_warm"], 3), "{:.2f}, {:.3f}".format(*one["doubting"]),
        number(one["error_doubting"], 3), "{:.2f}, {:.3f}, {:.2f}".format(*one["fitted"]),
        number(one["error_after"], 3), "{:.3f} ({:.3f})".format(*one["floor"]),
        *("-" if rank is None else number(rank, 3) for rank in one["ranking"]),
    ]  # fmt: skip


def _set_row(one: Part) -> list[str]:
    expected = spread(one["expected"]) if one["questions"] == one["tested"] else "-"
    return [
        one["task"], percent(one["covered"]), spread(one["binomial"]), expected, spread(one["splits"]),
        percent(one["mean_covered"]), number(one["size"], 2),
    ]  # fmt: skip


def draw(numbers: Numbers) -> Figure | None:
    """Draw right answers with their intervals, one line per way and one panel per task; forward passes are written."""
    tasks = by_task(numbers["rows"])
    if not tasks:
        return None
    figure: Figure = plt.figure(figsize=(3.2 * len(tasks) + 1.6, 3.9), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    ways = list(dict.fromkeys(row["way"] for row in numbers["rows"]))
    for axes, (task, rows) in zip(panels, tasks.items(), strict=True):
        _draw_task(axes, task, {ways.index(row["way"]): row for row in rows})
    panels[0].set_yticks(range(len(ways)), ways)
    panels[0].set_ylim(len(ways) - 0.5, -1.4)  # from top to bottom, with room for the heading of the passes
    handles = [
        plt.Line2D([], [], color=colour, marker="o", label=label)
        for label, colour in (
            (f"within {100 * LOSS:g} points of full decoding", BLUE), ("below that", RED), ("full decoding", GREY)
        )
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_task(axes: Axes, task: str, rows: Mapping[int, Part]) -> None:
    full = next(row for row in rows.values() if row["way"] == "full")
    axes.axvline(100 * full["accuracy"], color=GREY, linewidth=0.8)
    axes.text(1.02, -1, "forward\npasses", transform=axes.get_yaxis_transform(), va="center", fontweight="bold")
    for place, row in rows.items():
        colour = GREY if row["way"] == "full" else BLUE if row["difference"] >= -LOSS else RED
        axes.plot([100 * end for end in row["interval"]], [place, place], color=colour, linewidth=1.5)
        axes.plot(100 * row["accuracy"], place, "o", color=colour, markersize=6)
        axes.text(1.02, place, number(row["forwards"]), transform=axes.get_yaxis_transform(), va="center")
    axes.set(title=task, xlabel="right answers, % (95% interval)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)

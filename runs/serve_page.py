"""The tables and the picture of runs/serve_load.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from foretell.evaluation.intervals import paired_difference
from page import Numbers, change, number, percent, points, times

GENERATE, SERVER, NAIVE = "Engine.generate", "server", "one at a time"
COLOURS = {GENERATE: "0.7", SERVER: "tab:green", NAIVE: "tab:red"}
BEST, NEVER, FULL = "swift", "swift stop=never", "full"
GOALS = {"beside": 0.8, "alone": 1.4, "full": 12.0, "gain": -0.005}  # at least
MEGABYTE = 1 << 20
COUNTS = ("requests", "answered", "left", "different", "streams", "refusals")  # of a round of the soak
Part = Mapping[str, Any]


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the tables and goals of the parts that were measured."""
    views = {"speed": view_speed, "accuracy": view_accuracy, "soak": view_soak}
    made = [show(numbers[part]) for part, show in views.items() if part in numbers]
    found = {name: value for one in made for name, value in one.pop("found", {}).items()}
    goals = {
        name: {"least": least, "found": found[name], "reached": found[name] >= least}
        for name, least in GOALS.items()
        if name in found
    }
    return {"goal": goals} | {name: value for one in made for name, value in one.items()}


def view_speed(speed: Part) -> dict[str, Any]:
    """Return what was found for each goal, and the rows of the table."""
    recipes = speed["recipes"]
    served = recipes[BEST][SERVER]["rate"]
    beside = {recipe: ways[SERVER]["rate"] / ways[GENERATE]["rate"] for recipe, ways in recipes.items()}
    return {
        "found": {
            "beside": min(beside.values()),
            "alone": served / recipes[BEST][NAIVE]["rate"],
            "full": served / recipes[FULL][NAIVE]["rate"],
        },
        "worst": min(beside, key=lambda recipe: beside[recipe]),
        "speed_rows": [
            _speed_row(recipe, way, one, recipes) for recipe, ways in recipes.items() for way, one in ways.items()
        ],
    }


def view_accuracy(accuracy: Part) -> dict[str, Any]:
    """Return the difference to full decoding, and one row per task and recipe."""
    tasks, problems = accuracy["tasks"], accuracy["problems"]
    total = {
        recipe: {name: sum(one[recipe][name] for one in tasks.values()) for name in ("right", "lost", "won")}
        for recipe in next(iter(tasks.values()))
    }
    count, best = problems * len(tasks), total[BEST]
    rows = [(task, recipe, one, problems) for task, recipes in tasks.items() for recipe, one in recipes.items()]
    rows += [("all", recipe, one, count) for recipe, one in total.items()]
    return {
        "found": {"gain": (best["won"] - best["lost"]) / count},
        "interval": paired_difference(best["lost"], best["won"], count),
        "answers": count,
        "accuracy_rows": [_accuracy_row(*row) for row in rows],
    }


def _accuracy_row(task: str, recipe: str, one: Part, count: int) -> list[str]:
    gain = (one["won"] - one["lost"]) / count
    shown = f"{change(gain)} ({points(paired_difference(one['lost'], one['won'], count))})"
    return [task, f"`{recipe}`", str(count), percent(one["right"] / count), "-" if recipe == FULL else shown]


def _speed_row(recipe: str, way: str, one: Part, recipes: Part) -> list[str]:
    latencies = ("-" if one[level] is None else number(one[level]) for level in ("p50", "p99"))
    return [
        f"`{recipe}`", way, number(one["rate"]), f"{one['rate'] / recipes[FULL][NAIVE]['rate']:.1f}x",
        times(one["rate"] / recipes[recipe][GENERATE]["rate"]), *latencies, percent(one["same"]),
    ]  # fmt: skip


def view_soak(soak: Part) -> dict[str, Any]:
    """Return the sums over all rounds, and one row per round."""
    rounds = soak["rounds"]
    return {
        "total": {name: sum(one[name] for one in rounds) for name in COUNTS},
        "growth": (rounds[-1]["memory"] - rounds[0]["memory"]) / MEGABYTE,
        "soak_rows": [
            [
                str(place), *(str(one[name]) for name in ("requests", "answered", "left", "different")),
                *(number(one[name]) for name in ("p50", "p99", "seconds_until_idle")),
                number(one["memory"] / MEGABYTE, 0),
            ]
            for place, one in enumerate(rounds, 1)
        ],
    }  # fmt: skip


def draw(numbers: Numbers) -> Figure | None:
    """Draw requests per second of every way under every recipe."""
    if "speed" not in numbers:
        return None
    made: Figure = plt.figure(figsize=(8, 3.4), layout="constrained")
    axes = made.subplots()
    speed = numbers["speed"]["recipes"]
    for place, way in enumerate(COLOURS):
        heights = [ways[way]["rate"] for ways in speed.values()]
        spots = [at + (place - 1) * 0.27 for at in range(len(speed))]
        bars = axes.bar(spots, heights, 0.25, color=COLOURS[way], label=way)
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], fontsize=8, padding=2)
    axes.set_xticks(range(len(speed)), list(speed))
    axes.set_ylabel("requests per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return made

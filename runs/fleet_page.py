"""The tables and the picture of runs/fleet.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from foretell.plan.costs import FEATURES
from foretell.plan.devices import DEVICES
from page import Numbers, number, times

Part = Mapping[str, Any]
GOAL = 0.1  # of the check, relative
PER_HOUR = 1e6 / 3600
COLOURS = {"full": "#4c566a", "prophet": "#2a6fb0", "fast-dllm-prophet": "#c8553d"}
RECIPES = tuple(COLOURS)
CHECK_COLOURS = ("#4c566a", "#2a6fb0", "#3a9a5b", "#b0812a")
BUSY = 0.8  # share of the capacity that is planned with
SHOWN_LOADS = (0.5, 0.8, 0.9)
APART = 0.06  # decades between two points whose numbers are both written
LEVELS = ("p50", "p95", "p99")
KINDS = (1, 2, 4, 8, 16)
ROUTES = ("at random", "by load")
STYLES = {"one replica": "-", "16 replicas, by load": "--", "16 replicas, by kind": ":"}


def seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def name_of(gpu: str) -> str:
    return DEVICES[gpu].name


def gpus_for(rate: float) -> int:
    return ceil(PER_HOUR / (rate * BUSY))


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the tables of both parts, and the numbers of the sentences."""
    check, plan = numbers["check"], numbers["plan"]
    capacity, fragments = plan["capacity"], plan["fragments"]
    most = capacity["published"][plan["gpu"]]
    cached = fragments["fast-dllm-prophet"]
    pairs = zip(KINDS, cached["16 replicas, by load"], cached["16 replicas, by kind"], strict=True)
    gains = {count: kind / load - 1 for count, load, kind in pairs}
    return {
        "goal": GOAL,
        "error": max(abs(value - 1) for one in check["ways"].values() for value in one["ratios"].values()),
        "fitted": [(name, cost) for name, cost in zip(FEATURES, check["coefficients"], strict=True) if cost > 0],
        "check_rows": [_check_row(name, one) for name, one in check["ways"].items()],
        "gpu": name_of(plan["gpu"]),
        "busy": BUSY,
        "capacity_rows": {exits: [_capacity_row(*one) for one in gpus.items()] for exits, gpus in capacity.items()},
        "saved": {name: 1 - most["full"] / rate for name, rate in most.items()},
        "load_rows": [
            _load_row(name, plan["alone"][name], one)
            for name, found in plan["loads"].items()
            for one in found
            if one["load"] in SHOWN_LOADS
        ],
        "arrival_rows": [
            [name, f"{one['load']:.0%}", *(seconds(one[level]) for level in LEVELS)]
            for name, found in plan["arrivals"].items()
            for one in found
        ],
        "counts": [one["rows"] for one in plan["row_counts"]["full"]],
        "row_rows": [row for name, found in plan["row_counts"].items() for row in _row_rows(name, found)],
        "fragment_rows": [
            [f"{name}, {way}", *(f"{value:.0%}" for value in values)]
            for name, ways in fragments.items()
            for way, values in ways.items()
        ],
        "lost": {name: max(0.0, 1 - ways["one replica"][-1]) for name, ways in fragments.items()},
        "gains": gains,
        "best": max(gains, key=lambda count: gains[count]),
        "replica_rows": [_replica_row(*both) for both in zip(*(plan["replicas"][way] for way in ROUTES), strict=True)],
    }


def _check_row(name: str, one: Part) -> list[str]:
    real, made, ratio = one["measured"], one["simulated"], one["ratios"]
    rates = (number(each["rate"], 2) for each in (real, made, ratio))
    return [name, *rates, seconds(real["p95"]), seconds(made["p95"]), number(ratio["p95"], 2)]


def _capacity_row(gpu: str, rates: Part) -> list[str]:
    ratios = (times(rates[one] / rates["full"]) for one in RECIPES[1:])
    counts = (f"{gpus_for(rates[one]):,}" for one in RECIPES)
    return [name_of(gpu), *(f"{rates[one]:.3g}" for one in RECIPES), *ratios, *counts]


def _load_row(name: str, alone: float, one: Part) -> list[str]:
    levels = (seconds(one[level]) for level in LEVELS)
    return [name, f"{one['load']:.0%}", seconds(alone), *levels, f"{one['p95'] / alone:.1f}x"]


def _row_rows(name: str, found: Sequence[Part]) -> list[list[str]]:
    return [
        [f"{name}: capacity", *(times(one["rate"] / found[0]["rate"]) for one in found)],
        [f"{name}: p95", *(f"{seconds(one['p95'])} s" for one in found)],
    ]


def _replica_row(random: Part, loaded: Part) -> list[str]:
    loads = (f"{one['load']:.0%}" for one in (random, loaded))
    costs = (number(1 / one["load"], 2) if one["load"] else "-" for one in (random, loaded))
    return [f"{random['replicas']:,}", *loads, *costs, f"{3600 * loaded['rate']:,.0f}"]


def draw(numbers: Numbers) -> Figure:
    check, plan = numbers["check"], numbers["plan"]
    made: Figure
    made, axes = plt.subplots(2, 3, figsize=(17, 9.6), layout="constrained")
    _draw_check(axes[0, 0], check)
    _draw_gpus(axes[0, 1], plan)
    _draw_loads(axes[0, 2], plan)
    _draw_rows(axes[1, 0], plan)
    _draw_fragments(axes[1, 1], plan)
    _draw_replicas(axes[1, 2], plan)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return made


def _title(axis: Axes, words: str, kind: str = "simulated, published exits") -> None:
    axis.set_title(f"{words}\n[{kind}]", fontsize=11, loc="left")


def _plain(axis: Axes, *names: str) -> None:
    """Write numbers on logarithmic axes without powers."""
    for name in names:
        ruler = axis.xaxis if name == "x" else axis.yaxis
        ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ruler.set_minor_formatter(NullFormatter())


def _draw_check(axis: Axes, check: Part) -> None:
    for colour, (name, one) in zip(CHECK_COLOURS, check["ways"].items(), strict=True):
        real, made = one["latencies"], one["simulated_latencies"]
        share = (np.arange(len(real)) + 1) / len(real)
        axis.step(real, share, where="post", color=colour, label=name)
        axis.step(made, share, where="post", color=colour, linestyle=":", linewidth=2.2)
    axis.set_xscale("log")
    axis.set_xlim(left=min(min(one["latencies"]) for one in check["ways"].values()) / 15)  # room for the legend
    _plain(axis, "x")
    axis.set_xlabel("latency, seconds (solid: measured, dotted: simulated)")
    axis.set_ylabel("share of requests done")
    axis.legend(fontsize=8.5, loc="upper left")
    _title(axis, f"{check['requests']} requests on the bundled model", "measured, and simulated")


def _draw_gpus(axis: Axes, plan: Part) -> None:
    rates = plan["capacity"]["published"]
    width = 0.27
    for place, (name, colour) in enumerate(COLOURS.items()):
        at = np.arange(len(rates)) + (place - 1) * width
        counts = [gpus_for(one[name]) for one in rates.values()]
        axis.bar(at, counts, width, color=colour, label=name)
        for x, count in zip(at, counts, strict=True):
            axis.annotate(f"{count:,}", (x, count), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    axis.set_yscale("log")
    axis.set_xticks(range(len(rates)), [name_of(gpu) for gpu in rates], fontsize=9)
    _plain(axis, "y")
    axis.set_ylabel(f"GPUs at {BUSY:.0%} load")
    axis.legend(fontsize=8.5)
    axis.margins(y=0.12)
    _title(axis, "GPUs for a million requests per hour, LLaDA-8B")


def _draw_loads(axis: Axes, plan: Part) -> None:
    for name, colour in COLOURS.items():
        found = plan["loads"][name]
        loads = [100 * one["load"] for one in found]
        for level, style in zip(LEVELS, ("-", "--", ":"), strict=True):
            label = name if level == "p50" else None
            axis.plot(loads, [one[level] for one in found], style, color=colour, marker="o", markersize=3, label=label)
    axis.set_yscale("log")
    _plain(axis, "y")
    axis.set_xlabel("load, % of the capacity")
    axis.set_ylabel("latency, seconds (p50 solid, p95 dashed, p99 dotted)")
    axis.legend(fontsize=8.5)
    _title(axis, f"Latency of one {name_of(plan['gpu'])}, Poisson arrivals")


def _draw_rows(axis: Axes, plan: Part) -> None:
    for name, colour in COLOURS.items():
        found = plan["row_counts"][name]
        rates, slow = [one["rate"] for one in found], [one["p95"] for one in found]
        axis.plot(rates, slow, color=colour, marker="o", markersize=4, label=name)
        labelled: list[tuple[float, float]] = []
        for one in found:
            at = (np.log10(one["rate"]), np.log10(one["p95"]))
            if all(np.hypot(at[0] - x, at[1] - y) > APART for x, y in labelled):  # otherwise one number covers another
                axis.annotate(
                    str(one["rows"]), (one["rate"], one["p95"]), (4, 3), textcoords="offset points", fontsize=8
                )
                labelled.append(at)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks([0.25, 0.5, 1, 2, 4])
    axis.set_yticks([1, 2, 5, 10, 20])
    _plain(axis, "x", "y")
    axis.set_xlabel("capacity, requests per second")
    axis.set_ylabel("p95 latency at 70% load, seconds")
    axis.legend(fontsize=8.5)
    _title(axis, f"Rows of one {name_of(plan['gpu'])} (the numbers)")


def _draw_fragments(axis: Axes, plan: Part) -> None:
    for name, ways in plan["fragments"].items():
        for way, values in ways.items():
            shares = [100 * value for value in values]
            axis.plot(KINDS, shares, STYLES[way], color=COLOURS[name], marker="o", label=f"{name}, {way}")
    axis.set_xscale("log", base=2)
    axis.set_xticks(KINDS, [str(count) for count in KINDS])
    axis.set_ylim(0, 115)
    axis.set_xlabel("kinds of requests (recipe and window)")
    axis.set_ylabel("throughput, % of that with one kind")
    axis.legend(fontsize=8, loc="lower left")
    _title(axis, "What fragmentation costs, and routing by kind")


def _draw_replicas(axis: Axes, plan: Part) -> None:
    part = plan["replicas"]
    for way, colour in zip(ROUTES, ("#4c566a", "#2a6fb0"), strict=True):
        shown = [one for one in part[way] if one["load"]]
        costs = [1 / one["load"] for one in shown]
        axis.plot([one["replicas"] for one in shown], costs, color=colour, marker="o", label=f"routed {way}")
    axis.set_xscale("log")
    counts = [one["replicas"] for one in part["by load"]]
    axis.set_xticks(counts, [f"{count:,}" for count in counts])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylim(bottom=1)
    axis.set_xlabel("replicas")
    axis.set_ylabel("cost of a request (1: GPUs are always busy)")
    axis.legend(fontsize=8.5)
    _title(axis, f"Cost by size: prophet, p95 within {part['slow']:g}x of a request alone")

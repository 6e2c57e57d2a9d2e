"""The page of runs/fleet.py: the numbers and pictures of runs/fleet_template.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from foretell.plan.costs import FEATURES
from foretell.plan.devices import DEVICES
from text_page import table

Part = Mapping[str, Any]
TEMPLATE = Path(__file__).parent / "fleet_template.md"
GOAL = 0.1  # of the check, relative
PER_HOUR = 1e6 / 3600
COLOURS = {"full": "#4c566a", "prophet": "#2a6fb0", "fast-dllm-prophet": "#c8553d"}
RECIPES = tuple(COLOURS)
CHECK_COLOURS = ("#4c566a", "#2a6fb0", "#3a9a5b", "#b0812a")
BUSY = 0.8  # share of the capacity that is planned with
SHOWN_LOADS = (0.5, 0.8, 0.9)
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


def markdown(numbers: Part) -> list[str]:
    check, plan = numbers["check"], numbers["plan"]
    most = plan["capacity"]["published"][plan["gpu"]]
    values = {
        **{name: check[name] for name in ("requests", "batch", "steps_fitted", "load")},
        **{name: plan[name] for name in ("window", "prompt_mean", "efficiency", "rows", "low_share", "high_share")},
        **{f"{column}_steps": _steps(plan["steps"][column]) for column in ("published", "bundled")},
        **{f"{column}_table": _capacity(plan["capacity"][column]) for column in ("published", "bundled")},
        "check_table": _checked(check),
        "goal": _goal(check),
        "fitted": _fitted(check["coefficients"]),
        "gpu": name_of(plan["gpu"]),
        "busy": BUSY,
        "saved_prophet": 1 - most["full"] / most["prophet"],
        "saved_together": 1 - most["full"] / most["fast-dllm-prophet"],
        "load_table": _loads(plan),
        "arrival_table": _arrivals(plan),
        "rows_table": _rows(plan),
        "columns": plan["prompt_mean"] + plan["window"],
        "fragment_table": _fragments(plan),
        "pays": _pays(plan),
        "slow": plan["replicas"]["slow"],
        "alone": plan["replicas"]["alone"],
        "replica_table": _replicas(plan),
        "growth": _growth(plan["replicas"]),
    }
    return TEMPLATE.read_text(encoding="utf8").rstrip().format(**values).splitlines()


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    return "\n".join(table(headings, rows, words))


def _checked(check: Part) -> str:
    rows = []
    for name, one in check["ways"].items():
        real, made, ratio = one["measured"], one["simulated"], one["ratios"]
        rates = (f"{real['rate']:.2f}", f"{made['rate']:.2f}", f"{ratio['rate']:.2f}")
        rows.append([name, *rates, seconds(real["p95"]), seconds(made["p95"]), f"{ratio['p95']:.2f}"])
    headings = ("recipe", "requests/s, measured", "simulated", "ratio", "p95 in s, measured", "simulated", "ratio")
    return _table(headings, rows)


def _goal(check: Part) -> str:
    worst = max(abs(value - 1) for one in check["ways"].values() for value in one["ratios"].values())
    return f"{'Reached' if worst <= GOAL else 'Not reached'}: the largest error is {worst:.1%}."


def _fitted(coefficients: Sequence[float]) -> str:
    pairs = zip(FEATURES, coefficients, strict=True)
    return ", ".join(f"{1e6 * each:.3g} us per {feature}" for feature, each in pairs if each > 0)


def _steps(means: Part) -> str:
    return ", ".join(f"{value:.0f} steps with `{name}`" for name, value in means.items())


def _capacity(gpus: Part) -> str:
    rows = []
    for gpu, rates in gpus.items():
        ratios = (f"{rates[one] / rates['full']:.2f}x" for one in RECIPES[1:])
        counts = (f"{gpus_for(rates[one]):,}" for one in RECIPES)
        rows.append([name_of(gpu), *(f"{rates[one]:.3g}" for one in RECIPES), *ratios, *counts])
    headings = ["GPU", *(f"requests/s, {one}" for one in RECIPES), *(f"{one} / full" for one in RECIPES[1:])]
    return _table([*headings, *(f"GPUs, {one}" for one in RECIPES)], rows)


def _loads(plan: Part) -> str:
    rows = []
    for name, found in plan["loads"].items():
        single = plan["alone"][name]
        for one in found:
            if one["load"] in SHOWN_LOADS:
                cells = (seconds(one[level]) for level in LEVELS)
                rows.append([name, f"{one['load']:.0%}", seconds(single), *cells, f"{one['p95'] / single:.1f}x"])
    headings = ("recipe", "load", "alone, s", *(f"{level}, s" for level in LEVELS), "p95 / alone")
    return _table(headings, rows)


def _arrivals(plan: Part) -> str:
    rows = [
        [name, f"{one['load']:.0%}", *(seconds(one[level]) for level in LEVELS)]
        for name, found in plan["arrivals"].items()
        for one in found
    ]
    return _table(("arrivals", "load", *(f"{level}, s" for level in LEVELS)), rows)


def _rows(plan: Part) -> str:
    rows = []
    for name, found in plan["row_counts"].items():
        rows.append([f"{name}: capacity", *(f"{one['rate'] / found[0]['rate']:.2f}x" for one in found)])
        rows.append([f"{name}: p95", *(f"{seconds(one['p95'])} s" for one in found)])
    counts = [str(one["rows"]) for one in plan["row_counts"]["full"]]
    return _table(("rows", *counts), rows)


def _fragments(plan: Part) -> str:
    rows = [
        [f"{name}, {way}", *(f"{value:.0%}" for value in values)]
        for name, ways in plan["fragments"].items()
        for way, values in ways.items()
    ]
    return _table(("recipe and routing", *(f"{count} kinds" if count > 1 else "1 kind" for count in KINDS)), rows)


def _pays(plan: Part) -> str:
    plain, ways = plan["fragments"]["prophet"]["one replica"], plan["fragments"]["fast-dllm-prophet"]
    pairs = zip(KINDS, ways["16 replicas, by load"], ways["16 replicas, by kind"], strict=True)
    gains = {count: kind / load - 1 for count, load, kind in pairs}
    best = max(gains, key=lambda count: gains[count])
    return " ".join(
        (
            f"Without a cache, 16 kinds cost {max(0.0, 1 - plain[-1]):.0%} of the throughput, so routing by kind has",
            f"little to gain. With a cache they cost {1 - ways['one replica'][-1]:.0%} on one replica. Routing by kind",
            f"over 16 replicas changes the throughput by {gains[2]:+.0%} with 2 kinds and by {gains[16]:+.0%} with 16;",
            f"the best is {gains[best]:+.0%} with {best}.",
        )
    )


def _cost(one: Part) -> str:
    return f"{1 / one['load']:.2f}" if one["load"] else "-"


def _replicas(plan: Part) -> str:
    rows = []
    for random, loaded in zip(*(plan["replicas"][way] for way in ROUTES), strict=True):
        loads = (f"{one['load']:.0%}" for one in (random, loaded))
        costs = (_cost(one) for one in (random, loaded))
        rows.append([f"{random['replicas']:,}", *loads, *costs, f"{3600 * loaded['rate']:,.0f}"])
    headings = [f"load, routed {way}" for way in ROUTES] + [f"cost, {way}" for way in ROUTES]
    return _table(("replicas", *headings, "requests per hour, by load"), rows)


def _growth(part: Part) -> str:
    first, last = part["by load"][0], part["by load"][-1]
    random = part["at random"][-1]
    return " ".join(
        (
            f"Routed by load, {last['replicas']:,} replicas run at {last['load']:.0%} load where one runs at",
            f"{first['load']:.0%}: a request costs {1 - first['load'] / last['load']:.0%} less. At random it is",
            f"{random['load']:.0%}, because each replica has a queue of its own. Beyond that, cost grows in proportion",
            "to the requests. Loads are found to within a sixteenth, with one draw of arrivals, so small differences",
            "between sizes are noise.",
        )
    )


def figure(numbers: Part) -> Figure:
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
    _plain(axis, "x")
    axis.set_xlabel("latency, seconds (solid: measured, dotted: simulated)")
    axis.set_ylabel("share of requests done")
    axis.legend(fontsize=8.5, loc="lower right")
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
        for one in found:
            axis.annotate(str(one["rows"]), (one["rate"], one["p95"]), (4, 3), textcoords="offset points", fontsize=8)
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

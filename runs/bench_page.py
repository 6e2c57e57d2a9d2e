"""The page of runs/bench.py: its tables, its picture, and the goals of each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from foretell.plots.scaling import Series, plot_speed
from page import Numbers, number, percent, times

FASTER, CHECK, BESIDE, WASTE, TOGETHER, STACK, LOST, FLAT = 3.0, 0.01, 0.05, 0.1, 1.3, 8.0, 0.005, 0.9
FROM = 1  # index of the first window of (d) larger than a block, a region and a chunk of the rest together
LEAST = CHECK / 2  # shares of a step below this are timing noise
VARIED = ("rows", "window", "vocabulary")
LOOPS = {"LLaDA": "LLaDA's loop", "Prophet": "Prophet's loop", "Fast-dLLM": "Fast-dLLM's loop with a dual cache"}
Part = Mapping[str, Any]


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the tables and goals of the parts that were measured."""
    parts = {"a": plain_loops, "b": own_share, "c": queues, "d": memories, "e": costs, "f": choices}
    shown = {name: make(numbers[name]) for name, make in parts.items() if name in numbers}
    limits = {"faster": FASTER, "check": CHECK, "beside": BESIDE, "waste": WASTE, "together": TOGETHER, "stack": STACK}
    return {"part": shown, "goal": limits | {"lost": LOST, "flat": FLAT}}


def plain_loops(part: Part) -> dict[str, Any]:
    loops = {name: part[name] for name in LOOPS}
    rows = []
    for name, one in loops.items():
        for softmax, ratio in one["ratios"].items():
            cells = (times(ratio[ours][clock]) for ours in ("packed", "not packed") for clock in ("wall", "cpu"))
            rows.append([f"{LOOPS[name]}, softmax in {softmax}", f"`{one['recipe']}`", *cells, percent(one["same"])])
    own = max(one["own"] for one in loops.values())
    faster = {
        LOOPS[name]: one["ratios"]["float32"]["packed"]["wall"] >= FASTER and one["same"] == 1
        for name, one in loops.items()
    }
    shares = [(one["recipe"], one["own"]) for one in loops.values()]
    return {"numbers": part, "rows": rows, "shares": shares, "faster": faster, "beside": own <= BESIDE}


def own_share(part: Part) -> dict[str, Any]:
    rules = {name: one for name, one in part.items() if isinstance(one, dict) and "check" in one}
    full, prophet = rules["full"], rules["prophet"]
    rows = [
        [name, number(100 * one["check"], 2), number(100 * one["beside"], 2), number(one["step"] / full["step"], 3)]
        for name, one in rules.items()
    ]
    beside = max(full["beside"], prophet["beside"]) < BESIDE
    return {"numbers": part, "rows": rows, "check": prophet["check"] < CHECK, "beside": beside}


def queues(part: Part) -> dict[str, Any]:
    ways = part["ways"]
    waste = {name: 1 - one["columns_needed"] / one["columns_computed"] for name, one in ways.items()}
    rows = []
    for name, one in ways.items():
        score = "-" if one["accuracy"] is None else percent(one["accuracy"])
        cells = [times(one["speedup"]), percent(one["same"]), score, str(one["columns_needed"]), percent(waste[name])]
        rows.append([name, *cells])
    stack, base = ways["best stack, continuous"], ways["full, one by one"]
    return {
        "numbers": part,
        "rows": rows,
        "together": ways["prophet, continuous"]["speedup"] / ways["prophet, synchronous"]["speedup"],
        "wasted": max(share for name, share in waste.items() if name.endswith("continuous")),
        "stack": stack["speedup"],
        "lost": base["accuracy"] - stack["accuracy"],
    }


def flatness(part: Part) -> dict[str, float]:
    """Return the memory of a step at a small window divided by that at the largest."""
    return {name: rows[FROM] / rows[-1] for name, rows in part["rows"].items()}


def memories(part: Part) -> dict[str, Any]:
    rows = [[name, *map(number, taken)] for name, taken in part["rows"].items()]
    rows.append(["all of the window's logits", *map(str, part["windows"])])
    headings = " | ".join(["step", *(f"window {window}" for window in part["windows"])])
    flat = min(flatness(part).values()) >= FLAT
    return {"numbers": part, "headings": headings, "rows": rows, "start": part["windows"][FROM], "flat": flat}


def costs(part: Part) -> dict[str, Any]:
    series = {name: Series(**part[name]) for name in VARIED}
    rows = [[name, ", ".join(f"{size:g}" for size in one.sizes), *(number(slope, 2) for slope in one.slopes)]
            for name, one in series.items()]  # fmt: skip
    return {"numbers": part, "rows": rows}


def choices(part: Part) -> dict[str, Any]:
    rows = [
        [name, times(one["ratio"]), percent(one["same"])]
        for name in ("packed", "int8", "compile")
        if (one := part.get(name)) is not None
    ]
    return {"numbers": part, "rows": rows}


def draw(numbers: Numbers) -> Figure:
    bars = {}
    if "a" in numbers:
        bars["one request: plain loop's time over ours"] = {
            f"`{numbers['a'][name]['recipe']}`".strip("`") + f"\nbeside {words.split(' with')[0]}":
            numbers["a"][name]["ratios"]["float32"]["packed"]["wall"]
            for name, words in LOOPS.items()
        }  # fmt: skip
    if "c" in numbers:
        bars[f"{numbers['c']['requests']} requests: full one by one over this"] = {
            name: one["speedup"] for name, one in numbers["c"]["ways"].items()
        }
    scaling = {name: Series(**numbers["e"][name]) for name in VARIED} if "e" in numbers else {}
    return plot_speed(bars, scaling)


def ratios(numbers: Mapping[str, Part]) -> dict[str, float]:
    """Return the ratios that must not get worse; larger is better."""
    found: dict[str, float] = {}
    if "a" in numbers:
        for name, words in LOOPS.items():
            found[f"(a) {words} over ours"] = numbers["a"][name]["ratios"]["float32"]["packed"]["wall"]
    if "b" in numbers:
        shares = numbers["b"]["prophet"]
        found["(b) step over stop check"] = 1 / max(shares["check"], LEAST)
        found["(b) step over all policies"] = 1 / max(shares["beside"], LEAST)
    if "d" in numbers:
        for name, flat in flatness(numbers["d"]).items():
            found[f"(d) {name}, small window over large"] = flat
            found[f"(d) {name}, all logits over what is held"] = (
                numbers["d"]["windows"][-1] / numbers["d"]["rows"][name][-1]
            )
    return found

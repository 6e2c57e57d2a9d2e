"""Ablations: static budgets, remasking strategies, block lengths and threshold schedules.

    python runs/ablations.py                 # 300 held-out word problems for each of about 17 decodings
    python runs/ablations.py --model LLaDA-8B-Instruct --tasks gsm8k --device cuda

Every baseline is decoded live, with traces if Prophet is replayed on it. Decodings are shared with other scripts. Safe
to interrupt: run the same command again to resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure

from foretell.certify.replay import Study
from foretell.errors import RequestError
from foretell.evaluation.report import ReportRow, compare
from foretell.plots.ablations import Point, plot_ablations
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Schedule, Staged
from foretell.reproduce import paper
from page import Numbers, change, number, percent, points, publish, read_row, spread, state_of
from shared import benchmark, load_records, load_study, make_parser, parse_options, run_script

PARTS = (16, 8, 4, 2)
REDUCTIONS = ("mean", "min")
NAMES = ("baseline", *(f"Prophet, {reduction}" for reduction in REDUCTIONS))
SCHEDULES = ("staged", "linear", "cosine", "exponential")
PAPER = {  # LLaDA-8B on GSM8K: baseline, Prophet
    **{
        f"window {window}: 16, 32, 64, 128 steps{', full' * (window == 256)}": (
            ", ".join(map(str, budgets.values())),
            f"{paper.PROPHET[window].accuracy} at about {paper.PROPHET[window].steps} steps",
        )
        for window, budgets in paper.BUDGETS.items()
    },
    **{f"{name} remasking": (str(one.baseline), str(one.prophet)) for name, one in paper.REMASKING.items()},
    **{f"block {length}": (str(one.baseline), str(one.prophet)) for length, one in paper.BLOCKS.items()},
    **{f"{name} schedule": ("", f"{one.accuracy} at {one.steps} steps") for name, one in paper.SCHEDULES.items()},
}
NAMED = {
    "remasking random": "random remasking", "remasking low-confidence": "low-confidence remasking",
    "remasking margin": "top-k margin remasking",
}  # fmt: skip
WINDOWS = {
    "word": "The longer window has positions after the answer, which the model never saw in training.",
    "gsm8k": "The suffix is at the same share of both windows.",
}
SMOOTH: tuple[Schedule, ...] = (Linear(), Cosine(), Exponential())
ORDERS = {"random": "random", "low-confidence": "full", "margin": "margin", "entropy": "full score=entropy"}


Groups = dict[str, list[ReportRow]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is varied on a task."""

    task: str
    windows: Mapping[int, str]  # tasks by window length, the main one first
    varied: str  # the task whose remasking and block length are varied
    own_block: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    plan: Plan
    static: Groups
    full: Groups
    orders: Groups
    blocks: Groups
    taus: Groups


def make_plan(task: str, options: argparse.Namespace) -> Plan:
    """Return what to vary: GSM8K at windows 256 and 128 as in the paper, word problems at theirs and a longer one."""
    asked = benchmark(task, options).options
    window, block = asked["max_new_tokens"], asked["block_length"]
    if task == "gsm8k":
        return Plan(task, {256: "gsm8k", 128: "gsm8k_128"}, "gsm8k_128", block, (8, 16, 32, 64, 128))
    if task == "word":
        longer = benchmark("word_96", options).options["max_new_tokens"]
        return Plan(task, {window: task, longer: "word_96"}, task, block, tuple(sorted({8, 16, block, window})))
    raise RequestError(f"there is no ablation of {task}; choose word or gsm8k")


def make_rules(tau: Staged) -> dict[str, Prophet]:
    return {f"Prophet, {reduction}": Prophet(tau, reduce=reduction) for reduction in REDUCTIONS}  # type: ignore[arg-type]


def measure_static_budgets(window: int, task: str, options: argparse.Namespace) -> list[ReportRow]:
    """Decode with static budgets, live and without traces."""
    rows: list[ReportRow] = []
    for part in PARTS:
        asked = f"full steps={window // part}"
        rows += compare(load_records(task, asked, options), (asked,))
    return rows


def measure_prophet(task: str, recipe: str, options: argparse.Namespace) -> list[ReportRow]:
    """Decode a baseline, and replay Prophet on it."""
    one = load_study(task, options, recipe)
    return replay_rules(one, make_rules(one.bench.benchmark.thresholds))


def replay_rules(one: Study, rules: Mapping[str, Prophet]) -> list[ReportRow]:
    records = one.records
    base = records[0].recipe
    for name, rule in rules.items():
        records += one.replay(name, rule)
    return list(compare(records, (base, *rules)))


def replay_schedules(task: str, options: argparse.Namespace) -> Groups:
    one = load_study(task, options)
    taus = dict(zip(SCHEDULES, (one.bench.benchmark.thresholds, *SMOOTH), strict=True))
    made: Groups = {}
    for reduction in REDUCTIONS:
        rules = {f"{name}, {reduction}": Prophet(tau, reduce=reduction) for name, tau in taus.items()}  # type: ignore[arg-type]
        made[reduction] = replay_rules(one, rules)[1:]
    return made


def make_point(name: str, row: ReportRow) -> Point:
    return Point(name, row.steps, row.accuracy, row.accuracy_low, row.accuracy_high)


def make_points(groups: Groups, names: tuple[str, ...]) -> dict[str, list[Point]]:
    return {key: [make_point(*one) for one in zip(names, rows, strict=True)] for key, rows in groups.items()}


def measure(options: argparse.Namespace) -> Found:
    plan = make_plan(options.tasks[0], options)
    own = {plan.own_block: "full"}
    return Found(
        plan,
        {f"window {window}": measure_static_budgets(window, task, options) for window, task in plan.windows.items()},
        {f"window {window}": measure_prophet(task, "full", options) for window, task in plan.windows.items()},
        {name: measure_prophet(plan.varied, recipe, options) for name, recipe in ORDERS.items()},
        {str(n): measure_prophet(plan.varied, own.get(n, f"full block_length={n}"), options) for n in plan.blocks},
        replay_schedules(plan.task, options),
    )


def read_groups(numbers: Numbers, name: str) -> Groups:
    return {key: [read_row(row) for row in rows] for key, rows in numbers[name].items()}


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of all tables, and what the paper says beside them."""
    static, full, orders, blocks, taus = (
        read_groups(numbers, name) for name in ("static", "full", "remasking", "blocks", "schedules")
    )
    task = numbers.get("task", "word")
    tau = numbers.get("thresholds", [7.5, 5.0, 2.5])
    budgets = [_cells(key, f"static {row.budget:.0f}", row) for key, rows in static.items() for row in rows]
    return {
        "task": task,
        "thresholds": ", ".join(f"{bar:g}" for bar in tau),
        "longer": WINDOWS[task],
        "first": next(iter(static)).removeprefix("window "),
        "varied": numbers.get("varied_window", 64),
        "own_block": numbers.get("own_block", 32),
        "budget_rows": budgets + _rows(full, NAMES),
        "order_rows": _rows(orders, NAMES),
        "block_rows": _rows(blocks, NAMES),
        "schedule_rows": _rows(taus, SCHEDULES),
        "paper_rows": [[name, *values] for name, values in numbers["paper"].items()],
        "beside": [*_compare_budgets(static, full), *_compare_variants(orders, blocks)],
        "ranked": [(key, blocks[key][0].accuracy) for key in sorted(blocks, key=lambda key: -blocks[key][0].accuracy)],
        "schedules": taus,
    }


def _rows(groups: Groups, names: tuple[str, ...]) -> list[list[str]]:
    return [_cells(key, *one) for key, rows in groups.items() for one in zip(names, rows, strict=True)]


def _cells(group: str, name: str, row: ReportRow) -> list[str]:
    live = name == "baseline" or name.startswith("static")
    delta = f"{change(row.difference)} ({points((row.difference_low, row.difference_high))})"
    compared = ["", ""] if live else [delta, percent(row.agreement)]
    interval = spread((row.accuracy_low, row.accuracy_high))
    return [group, name, "live" if live else "replayed", percent(row.accuracy), interval, number(row.steps), *compared]


def _compare_budgets(static: Groups, full: Groups) -> Iterator[dict[str, Any]]:
    """Compare static budgets with full decoding, and Prophet with the largest one that takes no more steps."""
    for key, rows in static.items():
        whole, shortest = full[key][0], rows[0]
        falls, rises = shortest.accuracy_high < whole.accuracy_low, shortest.accuracy_low > whole.accuracy_high
        yield {"kind": "budget", "state": state_of(falls, rises), "key": key, "full": whole, "row": shortest}
        for row in full[key][1:]:
            fitting = [one for one in rows if one.steps <= row.steps]
            other = max(fitting, key=lambda one: one.steps, default=None)
            above = other is not None and row.accuracy_low > other.accuracy_high
            below = other is not None and row.accuracy_high < other.accuracy_low
            yield {"kind": "static", "state": state_of(above, below), "key": key, "row": row, "other": other}


def _compare_variants(orders: Groups, blocks: Groups) -> Iterator[dict[str, Any]]:
    """Compare Prophet with its baseline; in the paper it is better in every such case."""
    for kind, groups in (("remasking", orders), ("block", blocks)):
        for key, (base, *rows) in groups.items():
            theirs = PAPER.get(NAMED.get(f"{kind} {key}", f"{kind} {key}"))
            for row in rows:
                state = state_of(row.difference_low > 0, row.difference_high < 0)
                said = {"agrees": "a gain", "differs": "a loss"}.get(state, "no clear change")
                yield {
                    "kind": "variant", "state": state if theirs else "open", "key": f"{kind} {key}", "base": base,
                    "row": row, "theirs": theirs, "said": said,
                }  # fmt: skip


def draw(numbers: Numbers) -> Figure:
    static, full, orders, blocks, taus = (
        read_groups(numbers, name) for name in ("static", "full", "remasking", "blocks", "schedules")
    )
    lines = {
        key: [*(make_point("static", row) for row in rows), make_point("full", full[key][0])]
        for key, rows in static.items()
    }
    ends = {key: [make_point(*one) for one in zip(NAMES[1:], rows[1:], strict=True)] for key, rows in full.items()}
    panels = make_points(orders, NAMES), make_points(blocks, NAMES), make_points(taus, SCHEDULES)
    return plot_ablations(lines, ends, *panels)


def main() -> None:
    options = parse_options(make_parser(__doc__, 300, ("word",), ("gsm8k",)))
    if len(options.tasks) > 1:
        raise RequestError(f"one task at a time, got {', '.join(options.tasks)}")
    found = measure(options)
    groups = {
        "static": found.static, "full": found.full, "remasking": found.orders, "blocks": found.blocks,
        "schedules": found.taus,
    }  # fmt: skip
    plan = found.plan
    tau = benchmark(plan.task, options).thresholds
    numbers: dict[str, Any] = {
        "limit": options.limit, "paper": PAPER, "task": plan.task, "thresholds": [tau.high, tau.mid, tau.low],
        "varied_window": benchmark(plan.varied, options).options["max_new_tokens"], "own_block": plan.own_block,
    }  # fmt: skip
    numbers |= {
        name: {key: [_numbers(row) for row in rows] for key, rows in one.items()} for name, one in groups.items()
    }
    publish("ablations", numbers, options)


def _numbers(row: ReportRow) -> dict[str, Any]:
    """Return a row's numbers without times, which a replay does not have."""
    return {name: value for name, value in asdict(row).items() if name not in ("seconds", "clock_speedup")}


if __name__ == "__main__":
    run_script(main)

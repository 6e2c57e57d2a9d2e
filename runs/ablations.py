"""Ablations: static budgets, remasking strategies, block lengths and threshold schedules.

    python runs/ablations.py                 # 300 held-out word problems for each of about 17 decodings
    python runs/ablations.py --model LLaDA-8B-Instruct --tasks gsm8k --device cuda

Every baseline is decoded live, with traces if Prophet is replayed on it. Decodings are shared with other scripts. Safe
to interrupt: run the same command again to resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ablations_text import NAMES, PAPER, REDUCTIONS, SCHEDULES, Found, Groups, Plan, markdown
from foretell.certify.replay import Study
from foretell.errors import RequestError
from foretell.evaluation.report import ReportRow, compare
from foretell.plots.ablations import Point, plot_ablations
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Schedule, Staged
from page import publish
from shared import benchmark, load_records, load_study, make_parser, parse_options, run_script

PARTS = (16, 8, 4, 2)
SMOOTH: tuple[Schedule, ...] = (Linear(), Cosine(), Exponential())
ORDERS = {"random": "random", "low-confidence": "full", "margin": "margin", "entropy": "full score=entropy"}


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


def main() -> None:
    options = parse_options(make_parser(__doc__, 300, ("word",), ("gsm8k",)))
    if len(options.tasks) > 1:
        raise RequestError(f"one task at a time, got {', '.join(options.tasks)}")
    found = measure(options)
    lines = {
        key: [*(make_point("static", row) for row in rows), make_point("full", found.full[key][0])]
        for key, rows in found.static.items()
    }
    ends = {
        key: [make_point(*one) for one in zip(NAMES[1:], rows[1:], strict=True)] for key, rows in found.full.items()
    }
    panels = make_points(found.orders, NAMES), make_points(found.blocks, NAMES), make_points(found.taus, SCHEDULES)
    groups = {
        "static": found.static, "full": found.full, "remasking": found.orders, "blocks": found.blocks,
        "schedules": found.taus,
    }  # fmt: skip
    numbers: dict[str, Any] = {"limit": options.limit, "paper": PAPER}
    numbers |= {
        name: {key: [_numbers(row) for row in rows] for key, rows in one.items()} for name, one in groups.items()
    }
    publish("ablations", markdown(found, options), numbers, options, plot_ablations(lines, ends, *panels))


def _numbers(row: ReportRow) -> dict[str, Any]:
    """Return a row's numbers without times, which a replay does not have."""
    return {name: value for name, value in asdict(row).items() if name not in ("seconds", "clock_speedup")}


if __name__ == "__main__":
    run_script(main)

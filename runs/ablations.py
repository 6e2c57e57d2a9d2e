"""Ablations: static budgets, remasking strategies, block lengths and threshold schedules.

    python runs/ablations.py                 # 300 held-out word problems for each of some 17 decodings
    python runs/ablations.py --model LLaDA-8B-Instruct --tasks gsm8k --device cuda

Every baseline is decoded live, with traces where Prophet is asked about it; every Prophet is replayed on its
baseline's traces. What other scripts have decoded already is shared. Can be interrupted and started again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ablations_text import NAMES, PAPER, REDUCTIONS, SCHEDULES, Found, Groups, Plan, markdown
from foretell.certify.replay import Study
from foretell.errors import RequestError
from foretell.evaluation.report import Row, compare
from foretell.plots.ablations import Point, plot_ablations
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Schedule, Staged
from page import publish
from shared import benchmark, decoded, go, options_of, parser_of, studied

PARTS = (16, 8, 4, 2)
SMOOTH: tuple[Schedule, ...] = (Linear(), Cosine(), Exponential())
ORDERS = {"random": "random", "low-confidence": "full", "margin": "margin", "entropy": "full score=entropy"}


def plan_of(task: str, options: argparse.Namespace) -> Plan:
    """The paper's GSM8K at 256 and 128; word problems at their window and with free positions behind the answer."""
    asked = benchmark(task, options).options
    window, block = asked["max_new_tokens"], asked["block_length"]
    if task == "gsm8k":
        return Plan(task, {256: "gsm8k", 128: "gsm8k_128"}, "gsm8k_128", block, (8, 16, 32, 64, 128))
    if task == "word":
        longer = benchmark("word_96", options).options["max_new_tokens"]
        return Plan(task, {window: task, longer: "word_96"}, task, block, tuple(sorted({8, 16, block, window})))
    raise RequestError(f"there is no ablation of {task}; choose word or gsm8k")


def rules_of(tau: Staged) -> dict[str, Prophet]:
    return {f"Prophet, {reduction}": Prophet(tau, reduce=reduction) for reduction in REDUCTIONS}  # type: ignore[arg-type]


def truncated(window: int, task: str, options: argparse.Namespace) -> list[Row]:
    """Static budgets, decoded live without traces."""
    rows: list[Row] = []
    for part in PARTS:
        asked = f"full steps={window // part}"
        rows += compare(decoded(task, asked, options), (asked,))
    return rows


def stopped(task: str, recipe: str, options: argparse.Namespace) -> list[Row]:
    """A baseline, decoded, and what Prophet makes of it, replayed."""
    one = studied(task, options, recipe)
    return replayed(one, rules_of(one.bench.benchmark.thresholds))


def replayed(one: Study, rules: Mapping[str, Prophet]) -> list[Row]:
    records = one.records
    base = records[0].recipe
    for name, rule in rules.items():
        records += one.replay(name, rule)
    return list(compare(records, (base, *rules)))


def schedules(task: str, options: argparse.Namespace) -> Groups:
    one = studied(task, options)
    taus = dict(zip(SCHEDULES, (one.bench.benchmark.thresholds, *SMOOTH), strict=True))
    made: Groups = {}
    for reduction in REDUCTIONS:
        rules = {f"{name}, {reduction}": Prophet(tau, reduce=reduction) for name, tau in taus.items()}  # type: ignore[arg-type]
        made[reduction] = replayed(one, rules)[1:]
    return made


def point(name: str, row: Row) -> Point:
    return Point(name, row.steps, row.accuracy, row.accuracy_low, row.accuracy_high)


def drawn(groups: Groups, names: tuple[str, ...]) -> dict[str, list[Point]]:
    return {key: [point(*one) for one in zip(names, rows, strict=True)] for key, rows in groups.items()}


def measured(options: argparse.Namespace) -> Found:
    plan = plan_of(options.tasks[0], options)
    own = {plan.own_block: "full"}
    return Found(
        plan,
        {f"window {window}": truncated(window, task, options) for window, task in plan.windows.items()},
        {f"window {window}": stopped(task, "full", options) for window, task in plan.windows.items()},
        {name: stopped(plan.varied, recipe, options) for name, recipe in ORDERS.items()},
        {str(n): stopped(plan.varied, own.get(n, f"full block_length={n}"), options) for n in plan.blocks},
        schedules(plan.task, options),
    )


def main() -> None:
    options = options_of(parser_of(__doc__, 300, ("word",), ("gsm8k",)))
    if len(options.tasks) > 1:
        raise RequestError(f"one task at a time, got {', '.join(options.tasks)}")
    found = measured(options)
    lines = {
        key: [*(point("static", row) for row in rows), point("full", found.full[key][0])]
        for key, rows in found.static.items()
    }
    ends = {key: [point(*one) for one in zip(NAMES[1:], rows[1:], strict=True)] for key, rows in found.full.items()}
    panels = drawn(found.orders, NAMES), drawn(found.blocks, NAMES), drawn(found.taus, SCHEDULES)
    groups = {
        "static": found.static, "full": found.full, "remasking": found.orders, "blocks": found.blocks,
        "schedules": found.taus,
    }  # fmt: skip
    numbers: dict[str, Any] = {"limit": options.limit, "paper": PAPER}
    numbers |= {
        name: {key: [_numbers(row) for row in rows] for key, rows in one.items()} for name, one in groups.items()
    }
    publish("ablations", markdown(found, options), numbers, options, plot_ablations(lines, ends, *panels))


def _numbers(row: Row) -> dict[str, Any]:
    """Without the clock, which a replay does not have."""
    return {name: value for name, value in asdict(row).items() if name not in ("seconds", "clock_speedup")}


if __name__ == "__main__":
    go(main)

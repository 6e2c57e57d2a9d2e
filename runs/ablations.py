"""Ablations: static budgets, remasking strategies, block lengths and threshold schedules.

    python runs/ablations.py                 # 300 held-out word problems for each of some 17 decodings
    python runs/ablations.py --model LLaDA-8B-Instruct --tasks gsm8k --device cuda

Every baseline is decoded live, with traces where Prophet is asked about it; every Prophet is replayed on its
baseline's traces. What other scripts have decoded already is shared. Can be interrupted and started again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foretell.errors import RequestError
from foretell.lab.replays import Study
from foretell.lab.report import Row, compare
from foretell.plots.ablations import Point, ablations
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Schedule, Staged
from shared import (
    SEED,
    benchmark,
    command,
    decoded,
    go,
    options_of,
    parser_of,
    percent,
    points,
    problems,
    prose,
    publish,
    spread,
    studied,
    subject,
    table,
)

PARTS = (16, 8, 4, 2)
ORDERS = {"random": "random", "low-confidence": "full", "margin": "margin", "entropy": "full score=entropy"}
SMOOTH: dict[str, Schedule] = {"linear": Linear(), "cosine": Cosine(), "exponential": Exponential()}
REDUCTIONS = ("mean", "min")
PAPER = {  # LLaDA-8B on GSM8K: baseline, Prophet
    "window 256: 16, 32, 64, 128 steps, full": ("7.7, 22.5, 58.8, 76.2, 77.1", "77.9 at about 160 steps"),
    "window 128: 16, 32, 64, 128 steps": ("21.8, 50.3, 67.9, 71.3", "72.7 at about 74 steps"),
    "random remasking": ("63.8", "66.6"), "low-confidence remasking": ("71.3", "72.7"),
    "top-k margin remasking": ("72.4", "73.1"), "block 8": ("67.1", "72.8"), "block 16": ("68.7", "73.3"),
    "block 32": ("71.3", "72.7"), "block 64": ("59.9", "69.8"), "block 128": ("33.1", "52.2"),
    "staged schedule": ("", "77.9 at 160 steps"), "linear schedule": ("", "77.4 at 154 steps"),
}  # fmt: skip
Groups = dict[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is varied on a task. A way is a task and a recipe."""

    task: str
    windows: Mapping[int, tuple[str, str]]  # by length, the task's own first
    varied: str  # the task whose remasking and block length are varied
    own_block: int
    blocks: tuple[int, ...]


def plan_of(task: str, options: argparse.Namespace) -> Plan:
    """The paper's GSM8K at 256 and 128; word problems at their window and at three quarters of it."""
    asked = benchmark(task, options).options
    window, block = asked["max_new_tokens"], asked["block_length"]
    if task == "gsm8k":
        windows = {256: ("gsm8k", "full"), 128: ("gsm8k_128", "full")}
        return Plan(task, windows, "gsm8k_128", block, (8, 16, 32, 64, 128))
    if task == "word":
        shorter = window * 3 // 4
        windows = {window: (task, "full"), shorter: (task, f"full max_new_tokens={shorter}")}
        return Plan(task, windows, task, block, tuple(sorted({8, 16, block, window})))
    raise RequestError(f"there is no ablation of {task}; choose word or gsm8k")


def rules_of(tau: Staged) -> dict[str, Prophet]:
    return {f"Prophet, {reduction}": Prophet(tau, reduce=reduction) for reduction in REDUCTIONS}  # type: ignore[arg-type]


def truncated(window: int, task: str, recipe: str, options: argparse.Namespace) -> list[Row]:
    """Static budgets, decoded live without traces."""
    rows: list[Row] = []
    for part in PARTS:
        asked = f"{recipe} steps={window // part}"
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
        records += one.under(name, rule)
    return list(compare(records, (base, *rules)))


def schedules(task: str, options: argparse.Namespace) -> Groups:
    one = studied(task, options)
    taus: dict[str, Schedule] = {"staged": one.bench.benchmark.thresholds, **SMOOTH}
    made: Groups = {}
    for reduction in REDUCTIONS:
        rules = {f"{name}, {reduction}": Prophet(tau, reduce=reduction) for name, tau in taus.items()}  # type: ignore[arg-type]
        made[reduction] = replayed(one, rules)[1:]
    return made


def point(name: str, row: Row) -> Point:
    return Point(name, row.steps, row.accuracy, row.accuracy_low, row.accuracy_high)


def drawn(groups: Groups, names: tuple[str, ...]) -> dict[str, list[Point]]:
    return {key: [point(*one) for one in zip(names, rows, strict=True)] for key, rows in groups.items()}


def cells(group: str, name: str, row: Row) -> list[str]:
    change = f"{100 * row.difference:+.1f} ({points(row.difference_low, row.difference_high)})"
    live = name == "baseline" or name.startswith("static")
    compared = ["", ""] if live else [change, percent(row.agreement)]
    interval = spread(row.accuracy_low, row.accuracy_high)
    return [group, name, "live" if live else "replayed", percent(row.accuracy), interval, f"{row.steps:.1f}", *compared]


HEADINGS = ("what varies", "decoder", "how", "accuracy, %", "95%", "steps", "delta", "agrees, %")
NAMES = ("baseline", *(f"Prophet, {reduction}" for reduction in REDUCTIONS))
SCHEDULES = ("staged", *SMOOTH)


def lines_of(groups: Groups, names: tuple[str, ...]) -> list[str]:
    rows = [cells(key, *one) for key, rows in groups.items() for one in zip(names, rows, strict=True)]
    return table(HEADINGS, rows, words=3)


@dataclass(frozen=True, slots=True)
class Found:
    plan: Plan
    static: Groups
    full: Groups
    orders: Groups
    blocks: Groups
    taus: Groups


def measured(options: argparse.Namespace) -> Found:
    plan = plan_of(options.tasks[0], options)
    own = {plan.own_block: "full"}
    return Found(
        plan,
        {f"window {window}": truncated(window, *way, options) for window, way in plan.windows.items()},
        {f"window {window}": stopped(*way, options) for window, way in plan.windows.items()},
        {name: stopped(plan.varied, recipe, options) for name, recipe in ORDERS.items()},
        {str(n): stopped(plan.varied, own.get(n, f"full block_length={n}"), options) for n in plan.blocks},
        schedules(plan.task, options),
    )


def markdown(found: Found, options: argparse.Namespace) -> list[str]:
    budgets = [cells(key, f"static {row.budget:.0f}", row) for key, rows in found.static.items() for row in rows]
    whole = [cells(key, *one) for key, rows in found.full.items() for one in zip(NAMES, rows, strict=True)]
    paper = [[name, *values] for name, values in PAPER.items()]
    tau, first = benchmark(found.plan.task, options).thresholds, next(iter(found.plan.windows))
    varied = benchmark(found.plan.varied, options).options["max_new_tokens"]
    return [
        f"# Ablations, {subject(options)}",
        "",
        prose(
            f"{problems(options).replace(' a task', '')} of {found.plan.task} (seed {SEED}) for each row, the",
            "same ones",
            "everywhere. Live rows were decoded; replayed rows are Prophet (thresholds",
            f"{tau.high:g}, {tau.mid:g}, {tau.low:g}) asked about the traces of the baseline of their group. Accuracy",
            "with Wilson's 95% interval; delta to that baseline in points, paired, with a bootstrap interval (0",
            "to 0 where",
            f"no pair differs). {command('ablations', options)}",
        ),
        "", "## Static budgets", *table(HEADINGS, budgets + whole, words=3),
        "## Remasking strategies", f"Window {varied}, block {found.plan.own_block}.", *lines_of(found.orders, NAMES),
        "## Block lengths", f"Window {varied}, low-confidence remasking.", *lines_of(found.blocks, NAMES),
        "## Schedules",
        f"All replayed on the same traces (window {first}, low-confidence remasking, block {found.plan.own_block}).",
        "Staged: the paper's plateaus. Linear: the paper's ablation, from 8.0 to 3.5. Cosine and exponential: smooth",
        "ones, from 7.5 to 2.5.",
        *lines_of(found.taus, SCHEDULES),
        "## The paper's LLaDA-8B on GSM8K",
        *table(("what", "baseline, %", "Prophet, %"), paper, words=1),
        *verdict(found),
    ]  # fmt: skip


def verdict(found: Found) -> list[str]:
    lines = ["## Beside the paper", "Agrees or differs where 95% intervals tell; otherwise not decided at this n.", ""]
    for key, rows in found.static.items():
        whole, shortest = found.full[key][0], rows[0]
        state = _state(shortest.accuracy_high < whole.accuracy_low, shortest.accuracy_low > whole.accuracy_high)
        lines.append(
            f"- {key}: the paper's accuracy falls with a static budget; here full {percent(whole.accuracy)}, "
            f"{shortest.budget:.0f} steps {percent(shortest.accuracy)}: {state}."
        )
        lines += [_beside(key, row, rows) for row in found.full[key][1:]]
    for kind, groups in (("remasking", found.orders), ("block", found.blocks)):
        lines += [_against(f"{kind} {key}", rows[0], row) for key, rows in groups.items() for row in rows[1:]]
    ranked = sorted(found.blocks, key=lambda key: -found.blocks[key][0].accuracy)
    best = [f"{key} ({percent(found.blocks[key][0].accuracy)})" for key in ranked]
    lines.append(
        f"- The baseline's block lengths from best to worst: {', '.join(best)}; the paper's: 32, 16, 8, 64, 128."
    )
    for reduction, (staged, *others) in found.taus.items():
        told = [f"{percent(row.accuracy)} in {row.steps:.1f} steps ({row.recipe})" for row in (staged, *others)]
        lines.append(
            f"- Schedules by the {reduction}: {'; '.join(told)}. The paper's: staged 77.9 at 160, linear 77.4 at 154."
        )
    return lines


def _beside(key: str, row: Row, static: list[Row]) -> str:
    """Prophet's point beside the largest static budget that takes no more steps."""
    fitting = [one for one in static if one.steps <= row.steps]
    start = f"- {key}, {row.recipe}: {percent(row.accuracy)} in {row.steps:.1f} steps;"
    if not fitting:
        return f"{start} no static budget here is that small."
    other = max(fitting, key=lambda one: one.steps)
    state = _state(row.accuracy_low > other.accuracy_high, row.accuracy_high < other.accuracy_low)
    return (
        f"{start} the static budget of {other.budget:.0f} steps has {percent(other.accuracy)}. In the paper Prophet's "
        f"point lies above the static ones: {state}."
    )


def _against(group: str, base: Row, row: Row) -> str:
    """In the paper Prophet is above its baseline in every one of these that it has."""
    known = group != "remasking entropy"
    paper = "the paper's Prophet gains on its baseline" if known else "not in the paper"
    state = _state(row.difference_low > 0, row.difference_high < 0)
    if not known:
        state = {"agrees": "a gain", "differs": "a loss"}.get(state, state)
    return (
        f"- {group}, {row.recipe}: {paper}; here {percent(base.accuracy)} -> "
        f"{percent(row.accuracy)} in {row.steps:.1f} of {base.steps:.1f} steps: {state}."
    )


def _state(yes: bool, no: bool) -> str:
    return "agrees" if yes else "differs" if no else "not decided at this n"


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
    publish("ablations", markdown(found, options), numbers, options, ablations(lines, ends, *panels))


def _numbers(row: Row) -> dict[str, Any]:
    """Without the clock, which a replay does not have."""
    return {name: value for name, value in asdict(row).items() if name not in ("seconds", "wall_speedup")}


if __name__ == "__main__":
    go(main)

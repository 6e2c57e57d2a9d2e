"""The main table: full decoding, Prophet by the mean and by the minimum gap, and half the budget, on every task.

    python runs/main_table.py                # 1000 held-out problems per task
    python runs/main_table.py --model LLaDA-8B-Instruct --tasks gsm8k mmlu --device cuda

Full decoding and half the budget are decoded live; both Prophets are replayed on the traces of full decoding. Times
come from a smaller live run of all four on an idle machine, in one process, which also checks the replay. Safe to
interrupt: run the same command again to resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from foretell.errors import RequestError
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.plots.ablations import Point, plot_comparison
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Staged
from foretell.reproduce.paper import LLADA, MAIN
from foretell.reproduce.paper import NAMES as PAPER_NAMES
from page import Numbers, change, number, percent, points, publish, read_row, spread, state_of, times
from shared import (
    benchmark,
    evaluation,
    load_records,
    load_study,
    make_parser,
    paper_benchmark,
    paper_model,
    parse_options,
    rename,
    run_evaluation,
    run_script,
)

FULL, MEAN, MIN, HALF = NAMES = ("full", "Prophet, mean gap", "Prophet, min gap", "half the budget")
HOW = {FULL: "live", MEAN: "replayed", MIN: "replayed", HALF: "live"}
WITHIN = "within the paper's range"
BATCH = 32  # of runs whose numbers do not say it
CLOCK = 64  # timed problems per task
ROUNDING = 0.01  # share of decodings that may differ between runs: other batches round logits differently


@dataclass(frozen=True, slots=True)
class Found:
    rows: list[ReportRow]  # one per name in NAMES, with the times of the timed run
    thresholds: Staged
    timed: int  # number of timed problems
    checked: int  # decodings of the timed run that were also replayed
    equal: int  # how many of those have the same steps and answer


def measure(task: str, options: argparse.Namespace) -> Found:
    asked = benchmark(task, options)
    rules = {MEAN: Prophet(asked.thresholds), MIN: Prophet(asked.thresholds, reduce="min")}
    recipes = ("full", "prophet", "prophet stop.reduce=min", f"full steps={asked.options['max_new_tokens'] // 2}")
    one = load_study(task, options)
    records = rename(one.records, FULL)
    for name, rule in rules.items():
        records += one.replay(name, rule)
    records += rename(load_records(task, recipes[-1], options), HALF)
    live = run_timed(task, recipes, options)
    checked = [record for record in live if record.recipe != HALF]
    equal = count_agreeing(checked, records)
    if equal < (1 - ROUNDING) * len(checked):
        raise RequestError(f"{task}: only {equal} of {len(checked)} live decodings are what the replay says")
    clock = compare(live, NAMES)
    rows = [
        replace(row, seconds=other.seconds, clock_speedup=other.clock_speedup)
        for row, other in zip(compare(records, NAMES), clock, strict=True)
    ]
    return Found(rows, asked.thresholds, len(live) // len(NAMES), len(checked), equal)


def run_timed(task: str, recipes: Sequence[str], options: argparse.Namespace) -> list[Record]:
    """Decode all recipes live in one process; they take turns, so that a slower machine affects all of them."""
    limit = min(options.clock, options.limit)
    bench, records = run_evaluation(evaluation("timed", task, recipes, options, limit, workers=1))
    wanted = {example.id for example in bench.examples[:limit]}
    names = dict(zip(recipes, NAMES, strict=True))
    return [replace(record, recipe=names[record.recipe]) for record in records if record.id in wanted]


def count_agreeing(live: Sequence[Record], others: Sequence[Record]) -> int:
    """Return how many decodings have the same steps and answer in `others`."""
    known = {record.key: (record.steps, record.answer) for record in others}
    return sum(known[record.key] == (record.steps, record.answer) for record in live)


def classify_loss(base: ReportRow, row: ReportRow, worst: float) -> str:
    """Compare a change in accuracy with the largest loss in the paper."""
    if base.accuracy <= -worst:
        return "of too few right answers for a loss of that size"
    if row.difference_low >= worst:
        return WITHIN
    return (
        "a larger loss than any in the paper" if row.difference_high < worst else "not decided with this many problems"
    )


def classify_speed(row: ReportRow, slowest: float, fastest: float) -> str:
    if row.step_speedup < slowest:
        return "slower than any in the paper"
    return "faster than any in the paper" if row.step_speedup > fastest else WITHIN


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the table's rows, and what the paper says beside them."""
    model = numbers.get("paper_model", LLADA)
    paper = numbers["paper"][model]
    changes = sorted(after - before for before, after, _ in paper.values())
    speeds = sorted(speed for *_, speed in paper.values())
    found = {task: [read_row(row) for row in one["rows"]] for task, one in numbers["tasks"].items()}
    tasks = numbers["tasks"].values()
    bars = {"{high:g}, {mid:g}, {low:g}".format(**one["thresholds"]) for one in tasks}
    shown = [task for task in found if task in PAPER_NAMES] or list(PAPER_NAMES)
    return {
        "rows": [_cells(task, row) for task, rows in found.items() for row in rows],
        "thresholds": "; ".join(sorted(bars)),
        "timed": " or ".join(map(str, sorted({one["timed"] for one in tasks}))),
        "checked": sum(one["checked"] for one in tasks),
        "equal": sum(one["equal"] for one in tasks),
        "batch_size": numbers.get("batch_size", BATCH),
        "paper_model": model,
        "lowest": changes[0] / 100,
        "highest": changes[-1] / 100,
        "slowest": speeds[0],
        "fastest": speeds[-1],
        "beside": [
            _compare(task, rows[0], row, paper, changes[0] / 100, (speeds[0], speeds[-1]))
            for task, rows in found.items()
            for row in rows[1:3]
        ],
        "paper_headings": "benchmark"
        + "".join(
            f" | {one}: {name}" for one in numbers["paper"] for name in ("full", "Prophet", "difference", "speedup")
        ),
        "paper_rows": [
            [PAPER_NAMES[name], *(cell for one in numbers["paper"].values() for cell in _paper_cells(*one[name]))]
            for name in shown
        ],
    }


def _cells(task: str, row: ReportRow) -> list[str]:
    interval = spread((row.accuracy_low, row.accuracy_high))
    speed = [number(row.steps), times(row.step_speedup), times(row.clock_speedup)]
    compared = [change(row.difference), points((row.difference_low, row.difference_high)), percent(row.agreement)]
    return [task, row.recipe, HOW[row.recipe], str(row.n), percent(row.accuracy), interval, *speed,
            *(["", "", ""] if row.recipe == FULL else compared)]  # fmt: skip


def _compare(
    task: str,
    base: ReportRow,
    row: ReportRow,
    paper: Mapping[str, Sequence[float]],
    worst: float,
    speeds: Sequence[float],
) -> dict[str, Any]:
    named = paper_benchmark(task)
    before, after, speed = (0.0, 0.0, 0.0) if named is None else paper[named]
    lost, quick = classify_loss(base, row, worst), classify_speed(row, *speeds)
    return {
        "state": state_of(lost == quick == WITHIN, "loss than" in lost or quick != WITHIN),
        "task": task,
        "row": row,
        "loss": lost,
        "speed": quick,
        "named": named and PAPER_NAMES[named],
        "paper_change": (after - before) / 100,
        "paper_speed": speed,
    }


def _paper_cells(before: float, after: float, speed: float) -> list[str]:
    return [f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}", times(speed)]


def draw(numbers: Numbers) -> Figure:
    names = ("recipe", "steps", "accuracy", "accuracy_low", "accuracy_high")
    groups = {
        task: [Point(*(row[name] for name in names)) for row in one["rows"]] for task, one in numbers["tasks"].items()
    }
    return plot_comparison(groups, "task; mean steps on the bars")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--clock", type=int, default=CLOCK, help=f"number of timed problems (default: {CLOCK})")
    options = parse_options(parser)
    found = {task: measure(task, options) for task in options.tasks}
    numbers: dict[str, Any] = {"limit": options.limit, "paper": MAIN, "paper_model": paper_model(options)}
    numbers |= {"batch_size": options.batch_size, "tasks": {task: asdict(one) for task, one in found.items()}}
    publish("main_table", numbers, options)


if __name__ == "__main__":
    run_script(main)

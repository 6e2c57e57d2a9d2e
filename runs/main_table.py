"""The main table: full decoding, Prophet by the mean and by the minimum gap, and half the budget, on every task.

    python runs/main_table.py                # 1000 held-out problems per task
    python runs/main_table.py --model LLaDA-8B-Instruct --tasks gsm8k mmlu --device cuda

Full decoding and half the budget are decoded live; both Prophets are replayed on the traces of full decoding. Times
come from a smaller live run of all four on an idle machine, in one process, which also checks the replay. Safe to
interrupt: run the same command again to resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from foretell.errors import RequestError
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.plots.ablations import Point, plot_comparison
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Staged
from foretell.reproduce.paper import MAIN
from foretell.reproduce.paper import NAMES as PAPER_NAMES
from page import command, percent, points, problems, prose, publish, spread, subject, table
from shared import (
    SEED,
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


def cells(task: str, row: ReportRow) -> list[str]:
    compared = ["", "", ""]
    if row.recipe != FULL:
        change = f"{100 * row.difference:+.1f}"
        compared = [change, points(row.difference_low, row.difference_high), percent(row.agreement)]
    interval = spread(row.accuracy_low, row.accuracy_high)
    speed = [f"{row.steps:.1f}", f"{row.step_speedup:.2f}x", f"{row.clock_speedup:.2f}x"]
    return [task, row.recipe, HOW[row.recipe], str(row.n), percent(row.accuracy), interval, *speed, *compared]


def classify_loss(base: ReportRow, row: ReportRow, worst: float) -> str:
    """Compare a change in accuracy with the largest loss in the paper."""
    if base.accuracy <= -worst:
        return "of too few right answers for a loss of that size"
    if row.difference_low >= worst:
        return "within the paper's range"
    return "a larger loss than any in the paper" if row.difference_high < worst else "not decided at this n"


def classify_speed(row: ReportRow, slowest: float, fastest: float) -> str:
    if row.step_speedup < slowest:
        return "slower than any in the paper"
    return "faster than any in the paper" if row.step_speedup > fastest else "within the paper's range"


def verdict(found: dict[str, Found], model: str) -> list[str]:
    paper = MAIN[model]
    changes = sorted(after - before for before, after, _ in paper.values())
    speeds = sorted(speed for *_, speed in paper.values())
    lines = [
        "## Beside the paper",
        prose(
            f"For {model} the paper reports changes from {changes[0]:+.1f} to {changes[-1]:+.1f} points at",
            f"{speeds[0]:.2f}x to {speeds[-1]:.2f}x. A change here counts as within that range if its interval stays",
            f"above {changes[0]:+.1f}, as a larger loss if the whole interval lies below.",
        ),
        "",
    ]
    for task, one in found.items():
        named = paper_benchmark(task)
        beside = ""
        if named is not None:
            before, after, speed = paper[named]
            beside = f" The paper's {PAPER_NAMES[named]}: {after - before:+.1f} points at {speed:.2f}x."
        for row in one.rows[1:3]:
            change = f"{100 * row.difference:+.1f} points ({points(row.difference_low, row.difference_high)})"
            lines.append(
                f"- {task}, {row.recipe}: {change}, {classify_loss(one.rows[0], row, changes[0] / 100)}; "
                f"{row.step_speedup:.2f}x in steps, {classify_speed(row, speeds[0], speeds[-1])}; the rule ended "
                f"{row.settled:.0%} of the decodings.{beside}"
            )
    return lines


def paper_rows(tasks: Sequence[str]) -> list[list[str]]:
    """Return the paper's rows for the public benchmarks among the tasks, or all rows if there are none."""
    shown = [task for task in tasks if task in PAPER_NAMES] or list(PAPER_NAMES)
    rows = []
    for name in shown:
        both = [MAIN[model][name] for model in MAIN]
        rows.append(
            [
                PAPER_NAMES[name],
                *(cell for a, b, s in both for cell in (f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}", f"{s:.2f}x")),
            ]
        )
    return rows


def markdown(found: dict[str, Found], options: argparse.Namespace) -> list[str]:
    headings = (
        "task", "decoder", "how", "n", "accuracy, %", "95%", "steps", "speedup", "clock", "delta", "95%", "agrees, %",
    )  # fmt: skip
    rows = [cells(task, row) for task, one in found.items() for row in one.rows]
    thresholds = {f"{one.thresholds.high:g}, {one.thresholds.mid:g}, {one.thresholds.low:g}" for one in found.values()}
    timed_on = sorted({one.timed for one in found.values()})
    equal, checked = (sum(getattr(one, name) for one in found.values()) for name in ("equal", "checked"))
    theirs = [f"{model}: {name}" for model in MAIN for name in ("full", "Prophet", "delta", "speedup")]
    return [
        f"# Main table, {subject(options)}",
        "",
        prose(
            f"{problems(options)} (seed {SEED}). Full decoding and half the budget were decoded live; both",
            "Prophets are",
            "replayed on full decoding's traces, which gives what a live run gives. The clock is that of a live run of",
            f"all four on the first {' or '.join(map(str, timed_on))} problems of each task, in one process, in",
            "batches",
            f"of {options.batch_size}, taking turns; of the {checked} decodings there that can be compared,",
            f"{equal} took",
            "the same steps to the same answer.",
        ),
        "",
        prose(
            "Accuracy with Wilson's 95% interval; delta to full decoding in points, paired, with Tango's 95% interval.",
            "Speedup: full's mean steps over these; clock: the same of wall-clock time.",
            "Agrees: answers equal to full decoding's. Both Prophets use the paper's thresholds for the task",
            f"({'; '.join(sorted(thresholds))}); the mean is the paper's. {command('main_table', options)}",
        ),
        *table(headings, rows, words=3),
        "The paper's own, for comparison:",
        *table(("benchmark", *theirs), paper_rows(options.tasks), words=1),
        *verdict(found, paper_model(options)),
    ]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--clock", type=int, default=CLOCK, help=f"number of timed problems (default: {CLOCK})")
    options = parse_options(parser)
    found = {task: measure(task, options) for task in options.tasks}
    numbers: dict[str, Any] = {"limit": options.limit, "paper": MAIN}
    numbers |= {"tasks": {task: asdict(one) for task, one in found.items()}}
    groups = {
        task: [Point(row.recipe, row.steps, row.accuracy, row.accuracy_low, row.accuracy_high) for row in one.rows]
        for task, one in found.items()
    }
    figure = plot_comparison(groups, "task; mean steps on the bars")
    publish("main_table", markdown(found, options), numbers, options, figure)


if __name__ == "__main__":
    run_script(main)

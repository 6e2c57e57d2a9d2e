"""Distillation and early commit: teacher, SDTT, Prophet, and SDTT + Prophet on every task of the bundled model.

    make distil-tiny             # trains the student, if it does not exist yet
    python runs/sdtt.py          # 500 held-out problems per task

The student decodes with half the budget. The teacher with half the budget is the control: only the difference to it
is due to distillation. Both models are decoded once in full, with traces, and Prophet is replayed on those. Safe to
interrupt: run the same command again to resume.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from foretell.engine.certificate import model_hash
from foretell.engine.engine import folder_of
from foretell.evaluation.intervals import mcnemar
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.plots.ablations import Point, plot_comparison
from foretell.policies.stop.prophet import Prophet
from foretell.reproduce import paper
from page import Numbers, change, number, percent, points, publish, read_row, spread, times
from shared import SIDE, benchmark, load_records, load_study, make_parser, parse_options, rename, run_script

FULL, CONTROL, STUDENT = "teacher, full", "teacher, half", "SDTT, half"
STUDENT_MODEL = "tiny-sdtt"
RULES = {"mean gap": Prophet(), "min gap": Prophet(reduce="min")}
NAMES = (FULL, CONTROL, STUDENT, *(f"{who}, {rule}" for who in ("Prophet", "SDTT + Prophet") for rule in RULES))
SURE = 0.05  # largest p of McNemar's exact test that counts as a difference
HALF_TEACHER = paper.Result(paper.BUDGETS[256][128], 2.0, 128)
PAPER = {  # LLaDA-8B on GSM8K, window 256
    FULL: paper.SDTT["teacher"],
    CONTROL: HALF_TEACHER,
    STUDENT: paper.SDTT["SDTT"],
    **{name: paper.SDTT[name] for name in ("Prophet", "SDTT + Prophet")},
}


def measure(task: str, options: argparse.Namespace) -> tuple[list[ReportRow], ReportRow]:
    """Compare all rows with the full teacher, and the student with the teacher at the same budget."""
    half = f"full steps={benchmark(task, options).options['max_new_tokens'] // 2}"
    teacher, student = load_study(task, options), load_study(task, _student(options), half)
    control = rename(load_records(task, half, options), CONTROL)
    records = [*rename(teacher.records, FULL), *control, *rename(student.records, STUDENT)]
    for name, rule in RULES.items():
        records += teacher.replay(f"Prophet, {name}", rule) + student.replay(f"SDTT + Prophet, {name}", rule)
    both: list[Record] = [record for record in records if record.recipe in (CONTROL, STUDENT)]
    return list(compare(records, NAMES)), compare(both, (CONTROL, STUDENT))[1]


def _student(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options for the student."""
    folder = folder_of(options.student)
    kept = options.work / f"{folder.name}-{model_hash(folder)[:8]}"
    return argparse.Namespace(**vars(options) | {"model": options.student, "decodings": kept})


def view(numbers: Numbers) -> dict[str, Any]:
    found = {task: one for task, one in numbers.items() if isinstance(one, dict) and "student_to_half_teacher" in one}
    return {
        "student": numbers.get("student", STUDENT_MODEL),
        "sure": SURE,
        "rows": [_cells(task, read_row(row)) for task, one in found.items() for row in one["rows"]],
        "gains": [describe_gain(task, read_row(one["student_to_half_teacher"])) for task, one in found.items()],
        "paper_rows": [
            [name, number(accuracy), str(steps), times(speedup)]
            for name, (accuracy, steps, speedup) in numbers["paper"].items()
        ],
    }


def _cells(task: str, row: ReportRow) -> list[str]:
    difference, interval = change(row.difference), points((row.difference_low, row.difference_high))
    compared = [difference, interval, format_p(row.mcnemar_p), percent(row.agreement)]
    return [
        task,
        row.recipe,
        percent(row.accuracy),
        spread((row.accuracy_low, row.accuracy_high)),
        number(row.steps),
        times(row.step_speedup),
        *([""] * 4 if row.recipe == FULL else compared),
    ]


def format_p(chance: float) -> str:
    return "< 0.001" if chance < 0.001 else f"{chance:.3f}"


def describe_gain(task: str, bought: ReportRow) -> dict[str, Any]:
    """Return the effect of distillation at equal steps; the exact test decides, even against the interval."""
    chance = mcnemar(bought.lost, bought.won)
    shown, holds = chance <= SURE, bought.difference_low <= 0 <= bought.difference_high
    helped = bought.won > bought.lost if shown else None
    return {"task": task, "row": bought, "chance": chance, "helped": helped, "apart": shown is holds, "holds": holds}


def draw(numbers: Numbers) -> Figure:
    names = ("recipe", "steps", "accuracy", "accuracy_low", "accuracy_high")
    groups = {
        task: [Point(*(row[name] for name in names)) for row in one["rows"]]
        for task, one in numbers.items()
        if isinstance(one, dict) and "rows" in one
    }
    return plot_comparison(groups, "task; mean steps on the bars")


def main() -> None:
    parser = make_parser(__doc__, SIDE)
    parser.add_argument("--student", default=STUDENT_MODEL, help=f"the distilled model (default: {STUDENT_MODEL})")
    options = parse_options(parser)
    found = {task: measure(task, options) for task in options.tasks}
    theirs = {name: (one.accuracy, one.steps, one.speedup) for name, one in PAPER.items()}
    numbers: dict[str, Any] = {"limit": options.limit, "student": options.student, "paper": theirs}
    numbers |= {
        task: {"rows": [asdict(row) for row in rows], "student_to_half_teacher": asdict(bought)}
        for task, (rows, bought) in found.items()
    }
    publish("sdtt", numbers, options)


if __name__ == "__main__":
    run_script(main)

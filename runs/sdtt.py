"""Distillation and early commit: teacher, SDTT, Prophet, and SDTT + Prophet on every task of the bundled model.

    make distil-tiny             # trains the student, if it does not exist yet
    python runs/sdtt.py          # 500 held-out problems per task

The student decodes with half the budget. The teacher with half the budget is the control: only the difference to it
is due to distillation. Both models are decoded once in full, with traces, and Prophet is replayed on those. Safe to
interrupt: run the same command again to resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from foretell.engine.certificate import model_hash
from foretell.engine.engine import folder_of
from foretell.evaluation.intervals import mcnemar
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.plots.ablations import Point, plot_comparison
from foretell.policies.stop.prophet import Prophet
from foretell.reproduce import paper
from page import percent, points, problems, prose, publish, spread, table
from shared import SIDE, benchmark, load_records, load_study, make_parser, parse_options, rename, run_script

FULL, CONTROL, STUDENT = "teacher, full", "teacher, half", "SDTT, half"
RULES = {"mean gap": Prophet(), "min gap": Prophet(reduce="min")}
NAMES = (FULL, CONTROL, STUDENT, *(f"{who}, {rule}" for who in ("Prophet", "SDTT + Prophet") for rule in RULES))
SURE = 0.05  # largest p of McNemar's exact test that counts as a difference
DECIDES = prose(
    f"Whether there is a difference, the exact test decides: it is called one where p is at most {SURE:g}. The",
    "interval says how large it may be. The two can part where few pairs differ (right with one decoder, wrong with",
    "the other): the interval is that of a score test, which is approximate, and the exact test is more cautious.",
)
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


def cells(task: str, row: ReportRow) -> list[str]:
    compared = [""] * 4
    if row.recipe != FULL:
        change, interval = f"{100 * row.difference:+.1f}", points(row.difference_low, row.difference_high)
        compared = [change, interval, format_p(row.mcnemar_p), percent(row.agreement)]
    return [
        task,
        row.recipe,
        percent(row.accuracy),
        spread(row.accuracy_low, row.accuracy_high),
        f"{row.steps:.1f}",
        f"{row.step_speedup:.2f}x",
        *compared,
    ]


def format_p(chance: float) -> str:
    return "< 0.001" if chance < 0.001 else f"{chance:.3f}"


def describe_gain(task: str, bought: ReportRow) -> str:
    """Describe the effect of distillation at equal steps; the exact test decides, even against the interval."""
    chance = mcnemar(bought.lost, bought.won)
    shown = chance <= SURE
    said = "no difference is shown at this n"
    if shown:
        said = "distilling helped" if bought.won > bought.lost else "distilling did harm"
    if shown is (bought.difference_low <= 0 <= bought.difference_high):
        differ = bought.lost + bought.won
        said += f" (the interval {'holds' if shown else 'leaves out'} 0, but rests on {differ} pairs; the test decides)"
    change = f"{100 * bought.difference:+.1f} points ({points(bought.difference_low, bought.difference_high)})"
    return f"- {task}: {change}, {bought.won} won and {bought.lost} lost, exact p {chance:.2f}: {said}."


def markdown(found: dict[str, tuple[list[ReportRow], ReportRow]], options: argparse.Namespace) -> list[str]:
    headings = ("task", "decoder", "accuracy, %", "95%", "steps", "speedup", "delta", "95%", "exact p", "agrees, %")
    rows = [cells(task, row) for task, (rows, _) in found.items() for row in rows]
    theirs = [[name, f"{one.accuracy:.1f}", str(one.steps), f"{one.speedup:.2f}x"] for name, one in PAPER.items()]
    return [
        "# Distilling and early commit, bundled model",
        "",
        prose(
            f"{problems(options)}. Teacher: `{options.model}`; student: `{options.student}`, distilled by one round of",
            "SDTT (`runs/distil_tiny.toml`), always with half the teacher's budget. Rows without Prophet are live,",
            "those with it are replayed on their traces. Accuracy with Wilson's 95% interval; delta to the full",
            "teacher in points, paired, with Tango's 95% interval and McNemar's exact p.",
            "Speedup: full's mean steps over these. Agrees: answers equal to full decoding's. Thresholds 7.5, 5.0,",
            "2.5. `python runs/sdtt.py`",
        ),
        *table(headings, rows),
        DECIDES,
        "",
        "## What distilling bought",
        "The student against the teacher with the same half budget, on the same problems.",
        "",
        *(describe_gain(task, bought) for task, (_, bought) in found.items()),
        "",
        "## The paper's rows",
        "LLaDA-8B on GSM8K, a window of 256; teacher with half the budget: its ablation of static budgets.",
        *table(("decoder", "accuracy, %", "steps", "speedup"), theirs, words=1),
    ]


def bars(rows: Sequence[ReportRow]) -> list[Point]:
    return [Point(row.recipe, row.steps, row.accuracy, row.accuracy_low, row.accuracy_high) for row in rows]


def main() -> None:
    parser = make_parser(__doc__, SIDE)
    parser.add_argument("--student", default="tiny-sdtt", help="the distilled model (default: tiny-sdtt)")
    options = parse_options(parser)
    found = {task: measure(task, options) for task in options.tasks}
    theirs = {name: (one.accuracy, one.steps, one.speedup) for name, one in PAPER.items()}
    numbers: dict[str, Any] = {"limit": options.limit, "paper": theirs}
    numbers |= {
        task: {"rows": [asdict(row) for row in rows], "student_to_half_teacher": asdict(bought)}
        for task, (rows, bought) in found.items()
    }
    figure = plot_comparison({task: bars(rows) for task, (rows, _) in found.items()}, "task; mean steps on the bars")
    publish("sdtt", markdown(found, options), numbers, options, figure)


if __name__ == "__main__":
    run_script(main)

"""Write the paper's tables, with its results next to the measured ones, as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from foretell.evaluation.benchmark import Benchmark
from foretell.evaluation.catalogue import benchmark_named
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.reproduce.plan import Plan, Row, Table
from foretell.reproduce.run import Reproduction
from foretell.storage import write_file

HEADINGS = (
    "setting", "decoder", "n", "paper, %", "here, %", "here - paper", "paper's change", "change here", "paper's steps",
    "steps", "paper's speedup", "speedup",
)  # fmt: skip
LEGEND = (
    "Here: accuracy with Wilson's 95% interval. Here - paper: points, with the same interval; it takes the paper's "
    "number as exact. Change: points against full decoding in the same setting on the same problems, with Tango's "
    "interval for paired shares. Steps: mean per problem; given positions cost none. Speedup: full decoding's mean "
    "steps (or time, where the heading says so) divided by this decoder's."
)
COUNTERPART = (
    "This is no reproduction: the model is another one, and each task only resembles the paper's. Budgets and block "
    "lengths are the same shares of the window."
)


@dataclass(frozen=True, slots=True)
class FoundRow:
    row: Row
    found: ReportRow | None  # None: nothing was decoded


def find_rows(table: Table, what: Reproduction) -> list[FoundRow]:
    return [FoundRow(row, _compare_with_base(row, what)) for row in table.rows]


def _compare_with_base(row: Row, what: Reproduction) -> ReportRow | None:
    mine, base = what.records(row.decoding), what.records(row.base)
    if not mine or not base:
        return None
    names = ("base", "row")
    return compare([*_rename(base, names[0]), *_rename(mine, names[1])], names)[1]


def _rename(records: Sequence[Record], name: str) -> list[Record]:
    return [replace(record, recipe=name) for record in records]


def save_tables(what: Reproduction, plan: Plan) -> str:
    """Write tables.md and tables.json with all results that exist so far; return the Markdown."""
    found = {table.name: find_rows(table, what) for table in plan.tables}
    text = format_markdown(what, plan, found)
    spent = {f"{one.task}, {one.recipe}": what.hours(one) for one in plan.decodings}
    numbers: dict[str, Any] = {
        "model": what.model,
        "student": what.student,
        "paper": plan.subject.name,
        "counterparts": plan.subject.counterparts,
        "hours": sum(spent.values()),
        "hours_by_decoding": spent,
        "skipped": {task: one.reason for task, one in plan.skipped.items()},
        "tables": {name: [asdict(one) for one in rows] for name, rows in found.items()},
    }
    write_file(what.out / "tables.md", text)
    write_file(what.out / "tables.json", json.dumps(numbers, indent=2) + "\n")
    return text


def format_markdown(what: Reproduction, plan: Plan, found: dict[str, list[FoundRow]]) -> str:
    title = "Counterparts of the paper's tables" if plan.subject.counterparts else "The paper's tables"
    parts = [f"# {title}, {what.model}", *_describe(what, plan), LEGEND]
    for table in plan.tables:
        parts.append(f"## {table.title}")
        parts.append(_format_table([_format_row(one, table, plan) for one in found[table.name]]))
        parts += [f"- {note}" for note in table.notes]
    parts.append("## Configurations")
    parts.append("\n".join(f"- {task}: {_describe_configuration(benchmark_named(task))}" for task in plan.problems))
    return "\n\n".join(parts) + "\n"


def _describe(what: Reproduction, plan: Plan) -> list[str]:
    done = [one for one in plan.decodings if what.records(one)]
    unit = "CPU" if {what.device(one) for one in done} <= {"cpu"} else "GPU"
    spent = f"Decoding took {sum(map(what.hours, done)):.2f} {unit} hours in all runs together"
    complete = f"{len(done)} of {len(plan.decodings)} decodings have results"
    lines = [
        f"The paper's numbers are those of {plan.subject.name}. {spent}, without loading and grading; {complete}.",
        *(f"Not decoded: {task}. {one.reason}" for task, one in plan.skipped.items()),
    ]
    return [lines[0], COUNTERPART, *lines[1:]] if plan.subject.counterparts else lines


def _describe_configuration(benchmark: Benchmark) -> str:
    options, tau = benchmark.options, benchmark.thresholds
    window = options["max_new_tokens"]
    return (
        f"L = {window}, T = {options.get('steps', window)}, B = {options['block_length']}; thresholds {tau.high:g}, "
        f"{tau.mid:g}, {tau.low:g}, changing at {tau.first:.0%} and {tau.second:.0%}"
    )


def _format_table(rows: list[list[str]]) -> str:
    ruler = ["---"] * 2 + ["---:"] * (len(HEADINGS) - 2)
    return "\n".join("| " + " | ".join(row) + " |" for row in (HEADINGS, ruler, *rows))


def _format_row(one: FoundRow, table: Table, plan: Plan) -> list[str]:
    row, found, theirs = one.row, one.found, one.row.paper
    base = next(other.paper for other in table.rows if other.decoding == row.base)
    first = row.decoding == row.base
    paper = ["", "", "", ""]
    if theirs is not None:
        change = "" if first or base is None else f"{theirs.accuracy - base.accuracy:+.1f}"
        steps, speed = ("" if value is None else value for value in (theirs.steps, theirs.speedup))
        paper = [f"{theirs.accuracy:.1f}", change, str(steps), f"{speed:.2f}x" if speed else ""]
    if found is None:
        skipped = plan.skipped.get(row.decoding.task)
        label = "not decoded yet" if skipped is None else skipped.label
        return [row.setting, row.decoder, label, paper[0], "", "", paper[1], "", paper[2], "", paper[3], ""]
    low, high = found.accuracy_low, found.accuracy_high
    to_paper = ""
    if theirs is not None and not plan.subject.counterparts:
        to_paper = _format_change(found.accuracy, low, high, theirs.accuracy / 100)
    return [
        row.setting,
        row.decoder,
        str(found.n),
        paper[0],
        f"{100 * found.accuracy:.1f} ({100 * low:.1f} to {100 * high:.1f})",
        to_paper,
        paper[1],
        "" if first else _format_change(found.difference, found.difference_low, found.difference_high),
        paper[2],
        f"{found.steps:.1f}",
        paper[3],
        f"{found.clock_speedup if table.clock else found.step_speedup:.2f}x",
    ]


def _format_change(value: float, low: float, high: float, base: float = 0.0) -> str:
    """Return a change in points with its interval."""
    return f"{100 * (value - base):+.1f} ({100 * (low - base):+.1f} to {100 * (high - base):+.1f})"

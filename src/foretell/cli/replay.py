"""Replay a stopping rule on stored traces: where it would have fired, per trace and in total."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from foretell.cli.drafts import answer_positions, draft_text
from foretell.errors import TraceError
from foretell.evaluation.records import read_records
from foretell.storage import is_folder

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.engine.certificate import Certificate
    from foretell.engine.trace import Trace
    from foretell.loop.protocols import Region, Stop

MOST_ROWS = 40
NO_REGION = "no answer region was recorded, so no rule fires; name one with --region, e.g. --region masked"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a rule would have stopped one trace."""

    fired: int | None  # the step, from 0
    steps: int  # steps that would have been taken
    recorded: int  # steps that were taken
    budget: int
    committed: str  # the answer, or the text if there is no answer region
    final: str
    same: bool
    note: str = ""
    known: bool = True  # false if another rule ended the recording before this one fired


def find_traces(path: Path) -> dict[str, list[Trace]]:
    """Return the traces of a file, or those of every recipe of an evaluation's folder, by recipe."""
    from foretell.engine.trace_files import load_traces  # noqa: PLC0415

    if not is_folder(path):
        return {"": load_traces(path)}
    found: dict[str, list[Trace]] = {}
    files: dict[str, list[Trace]] = {}
    for record in read_records(path):
        if record.trace is not None and record.trace_index is not None:
            if record.trace not in files:
                files[record.trace] = load_traces(path / record.trace)
            found.setdefault(record.recipe, []).append(files[record.trace][record.trace_index])
    if not found:
        raise TraceError(f"{path} holds no traces; make them with `foretell eval --trace` or `foretell study`")
    return found


def replay_trace(trace: Trace, stop: Stop, region: Region | None = None) -> Outcome:
    """Return where the rule would have stopped a trace, and with which answer."""
    fired = trace.replay(stop, region)
    at, last = len(trace) - 1 if fired is None else fired, len(trace) - 1
    here, there = answer_positions(trace, at, region), answer_positions(trace, last, region)
    return Outcome(
        fired=fired,
        steps=at + 1,
        recorded=len(trace),
        budget=trace.request.budget,
        committed=draft_text(trace, at, here),
        final=draft_text(trace, last, there),
        same=trace.committed(at)[here].tolist() == trace.committed(last)[there].tolist(),
        note="" if stop.reads(trace.states(region)).any() else NO_REGION,
        known=fired is not None or not trace.settled,
    )


def remarks(trace: Trace, certificate: Certificate, region: Region | None) -> tuple[str, ...]:
    """Return reasons why a certificate does not hold for a trace, as far as this is known without its model."""
    recorded = trace.request.recipe
    recipe = recorded if region is None else replace(recorded, region=region)
    return certificate.remarks(recipe, trace.request.layout)


def print_report(console: Console, outcomes: list[Outcome]) -> None:
    console.print(_table(outcomes[:MOST_ROWS]))
    if len(outcomes) > MOST_ROWS:
        console.print(Text(f"... and {len(outcomes) - MOST_ROWS} more", style="dim"))
    if len(outcomes) > 1:
        console.print(Text(f"\n{summary(outcomes)}", style="bold"))


def summary(recorded: list[Outcome]) -> str:
    outcomes = [one for one in recorded if one.known]
    cut = len(recorded) - len(outcomes)
    left_out = f"{cut} of {len(recorded)} traces ended before this rule fired and are left out"
    if not outcomes:
        return left_out
    count, fired = len(outcomes), sum(one.fired is not None for one in outcomes)
    same, steps = sum(one.same for one in outcomes), sum(one.steps for one in outcomes)
    ratio = sum(one.budget for one in outcomes) / steps
    return (
        f"fired in {fired} of {count} · {steps / count:.1f} steps on average, {ratio:.2f}x fewer than the budget · "
        f"same answer in {same} of {count} ({same / count:.1%})" + (f" · {left_out}" if cut else "")
    )


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for title in ("trace", "fires at", "recorded", "budget", "same"):
        table.add_column(title, no_wrap=True, justify="left" if title == "same" else "right")
    table.add_column("would commit", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("final", ratio=1, overflow="ellipsis", no_wrap=True)
    for index, one in enumerate(outcomes):
        fires = f"step {one.steps}" if one.fired is not None else "never" if one.known else "unknown"
        same = Text("yes", style="green") if one.same else Text("NO", style="bold red")
        same = same if one.known else Text("?", style="dim")
        numbers = (str(index), fires, str(one.recorded), str(one.budget))
        table.add_row(*numbers, same, Text(one.committed), Text(one.final))
    return table

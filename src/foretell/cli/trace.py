"""`foretell trace`: draw stored traces, and replay other stopping rules on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from foretell.errors import ForetellError, RequestError, TraceError

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.engine.trace import Trace
    from foretell.loop.protocols import Region, Verdict

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Draw stored traces, or replay a stopping rule on them."
)
File = Annotated[Path, Argument(help="File that `foretell generate --trace` has written.")]
HEIGHT = 24  # rows of the heatmap, unless the trace has fewer steps


@app.command()
def show(
    file: File,
    index: Annotated[int, Option("--index", "-i", help="Index of the trace in the file, starting at 0.")] = 0,
    width: Annotated[int | None, Option(help="Width in columns (default: that of the terminal).")] = None,
) -> None:
    """Draw a trace: what changed at each step, the gap, and the drafts."""
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.chart import chart  # noqa: PLC0415
    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.cli.heatmap import heatmap  # noqa: PLC0415
    from foretell.cli.wording import count  # noqa: PLC0415
    from foretell.engine.trace_files import load_traces  # noqa: PLC0415

    if width is not None and width < 40:
        raise RequestError(f"--width must be at least 40, got {width}")
    traces, console = load_traces(file), out(width)
    if not -len(traces) <= index < len(traces):
        raise TraceError(f"{file} holds {count(len(traces), 'trace')}, so there is no --index {index}")
    trace = traces[index]
    heading = _heading(trace) + (f"  (trace {index % len(traces)} of {len(traces)})" if len(traces) > 1 else "")
    console.print(Text(heading, style="bold"), "\n")
    console.print(heatmap(trace, console.width, HEIGHT), "\n")
    verdict = _verdict_of(trace)
    if verdict.value is not None and verdict.bar is not None:
        console.print(chart(verdict.value.tolist(), verdict.bar.tolist(), verdict.measure, console.width), "\n")
    _show_dynamics(console, trace)
    steps = [step / trace.request.budget for step in range(len(trace))]
    _show_drafts(console, trace, steps if verdict.progress is None else verdict.progress.tolist())


@app.command()
def replay(
    path: Annotated[
        Path, Argument(help="File of traces, or folder of an evaluation with traces (`eval --trace`, `study`).")
    ],
    stop: Annotated[
        str, Option(help='Stopping rule, e.g. "prophet(tau=linear)", or a certified rule\'s .json file.')
    ] = "prophet",
    region: Annotated[str | None, Option(help='Answer region, e.g. "after(length=2)" (default: as recorded).')] = None,
) -> None:
    """Show where a stopping rule would have stopped, and with which answer."""
    from rich.markup import escape  # noqa: PLC0415

    from foretell.cli.console import note, out  # noqa: PLC0415
    from foretell.cli.replay import find_traces, print_report, remarks, replay_trace  # noqa: PLC0415
    from foretell.engine.certificate import Certificate, stop_of  # noqa: PLC0415

    given, place = stop_of(stop), _parse_region(region)
    rule = given.rule if isinstance(given, Certificate) else given
    for name, traces in find_traces(path).items():
        if name:
            out().print(f"[bold]{escape(name)}[/]")
        if isinstance(given, Certificate):
            note(remark for trace in traces for remark in remarks(trace, given, place))
        outcomes = [replay_trace(trace, rule, place) for trace in traces]
        note(outcome.note for outcome in outcomes if outcome.note)
        print_report(out(), outcomes)


def _verdict_of(trace: Trace) -> Verdict:
    """Return the verdict of the trace's own rule at each step; that of `Never` if the rule's file is missing."""
    from foretell.policies.stop.never import Never  # noqa: PLC0415

    states = trace.states()
    try:
        return trace.request.recipe.stop(trace, states)
    except ForetellError:
        return Never()(trace, states)


def _parse_region(text: str | None) -> Region | None:
    from foretell.loop.protocols import Region  # noqa: PLC0415
    from foretell.recipes.text import parse_value  # noqa: PLC0415

    return None if text is None else parse_value(Region, text, "region")


def _heading(trace: Trace) -> str:
    request = trace.request
    used = f"{len(trace)} of {request.budget} steps" + (", settled" if trace.settled else "")
    return f"{request.recipe} · {request.layout.length} positions · {used}"


def _show_dynamics(console: Console, trace: Trace) -> None:
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.drafts import answer_positions, has_answer  # noqa: PLC0415

    what = "answer" if has_answer(trace) else "text"
    where = answer_positions(trace)
    first, last = trace.first_match(where=where), trace.last_change(where)
    line = Text(f"The final {what} was first drafted at step ")
    line.append(str((first or 0) + 1), style="bold").append(" and did not change after step ")
    console.print(line.append(str(last + 1), style="bold").append(f" of {len(trace)}.\n"))


def _show_drafts(console: Console, trace: Trace, progress: Sequence[float]) -> None:
    """Print the drafts of the most informative steps; `progress` is p at each step, as the rule counts it."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.drafts import answer_positions, draft_text, has_answer  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for title in ("", "step", "p", "filled", *(("answer",) if has_answer(trace) else ())):
        table.add_column(title, no_wrap=True, justify="right" if title in ("step", "p", "filled") else "left")
    table.add_column("draft", ratio=1)
    for step, label in sorted(_name_steps(trace).items()):
        filled = int((trace.filled_at <= step).sum())
        row = [label, str(step + 1), f"{progress[step]:.2f}", f"{filled}/{trace.request.layout.length}"]
        if has_answer(trace):
            row.append(draft_text(trace, step, answer_positions(trace, step)))
        row.append(draft_text(trace, step))
        table.add_row(*(Text(cell, style="bold" if at == 0 else "") for at, cell in enumerate(row)))
    console.print(table)


def _name_steps(trace: Trace) -> dict[int, str]:
    """Return the steps worth reading, each with its names."""
    from foretell.cli.drafts import answer_positions  # noqa: PLC0415

    last, where = len(trace) - 1, answer_positions(trace)
    named: dict[int, str] = {}
    for step, name in (
        (0, "first"),
        (last // 4, "early"),
        (trace.first_match(where=where) or 0, "first match"),
        (trace.last_change(where), "last change"),
        (last, "commit" if trace.settled else "end"),
    ):
        named[step] = f"{named[step]}, {name}" if step in named else name
    return named

"""`foretell eval`: evaluate recipes on a benchmark and write a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from foretell.cli.generate import CHAT, ON_MISMATCH
from foretell.cli.model import (
    Actors,
    Compile,
    Device,
    Dtype,
    Model,
    Packed,
    Quantize,
    Ray,
    Revision,
    Threads,
    at_revision,
    introduce,
    open_pool,
)
from foretell.cli.usage import EXAMPLES, MACHINE, OUTPUT, WINDOW
from foretell.extras import require_extra

if TYPE_CHECKING:
    from foretell.evaluation.records import Record
    from foretell.evaluation.run import Evaluation, PreparedEvaluation

SHOWN = 3  # most recipes on one line of progress
LINES = 20  # lines of progress in a log, from start to end


def decoding_options(
    *,
    limit: Annotated[
        int | None,
        Option(
            help="Number of examples, chosen by the seed (default: all; of a bundled task, 1000).",
            rich_help_panel=EXAMPLES,
        ),
    ] = None,
    seed: Annotated[int, Option(help="Random seed, also for the choice of examples.", rich_help_panel=EXAMPLES)] = 0,
    batch_size: Annotated[int, Option(help="Number of examples decoded together.", rich_help_panel=MACHINE)] = 8,
    data: Annotated[
        Path | None,
        Option(help="The task's data: a file or a folder (default: FORETELL_DATA).", rich_help_panel=EXAMPLES),
    ] = None,
    allow_code_execution: Annotated[
        bool,
        Option(
            "--allow-code-execution",
            help="Allow tasks to run programs that the model wrote.",
            rich_help_panel=EXAMPLES,
        ),
    ] = False,
    sandbox: Annotated[
        str | None,
        Option(
            help="Isolation of these programs: bubblewrap, namespaces or limits (default: bubblewrap or namespaces, "
            "whichever works; see docs/evaluation.md).",
            rich_help_panel=EXAMPLES,
        ),
    ] = None,
    workers: Annotated[
        int,
        Option(help="Number of worker processes (one torch thread each if more than one).", rich_help_panel=MACHINE),
    ] = 1,
    threads: Threads = None,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    compile_: Compile = False,
    quantize: Quantize = None,
    packed: Packed = None,
    ray: Ray = None,
    actors: Actors = None,
) -> dict[str, Any]:
    """Return the options of every command that decodes a benchmark."""
    given = dict(locals())
    given["pool"] = open_pool(given.pop("ray"), given.pop("actors"))
    return given | {"source": given.pop("data"), "compile": given.pop("compile_")}


def window_options(
    *,
    layout: Annotated[
        str | None, Option(help="For prompts: the name of one of the model's layouts.", rich_help_panel=WINDOW)
    ] = None,
    max_new_tokens: Annotated[
        int | None, Option(help="Length of the response window in tokens.", rich_help_panel=WINDOW)
    ] = None,
    suffix: Annotated[
        str | None,
        Option(help='Text that is fixed before the answer, e.g. "The answer is".', rich_help_panel=WINDOW),
    ] = None,
    answer_length: Annotated[int | None, Option(help="Length of the answer in tokens.", rich_help_panel=WINDOW)] = None,
    answer_start: Annotated[
        int | None,
        Option(help="Position of the answer in the window (default: at its end).", rich_help_panel=WINDOW),
    ] = None,
    chat: Annotated[bool | None, Option("--chat/--raw", help=CHAT, rich_help_panel=WINDOW)] = None,
) -> dict[str, Any]:
    """Return the options of every command that decodes your own prompts."""
    return {"options": {name: value for name, value in locals().items() if value is not None}}


def evaluation_options(
    *,
    model: Model,
    task: Annotated[str, Option("--task", "-t", help="Task to evaluate (see `foretell tasks`).")],
    out: Annotated[
        Path, Option(help="Folder for the results. Run the command again to resume, also with a larger --limit.")
    ],
    stop: Annotated[
        str | None,
        Option(help="Stopping rule or certified rule's .json file. Replaces the rule of every recipe that has one."),
    ] = None,
    on_mismatch: Annotated[str | None, Option(help=ON_MISMATCH)] = None,
    strict: Annotated[
        bool, Option("--strict", help="Grade only an answer that the text states, never just its last number.")
    ] = False,
) -> dict[str, Any]:
    """Return the options of every evaluation."""
    return dict(locals())


def with_options(*shared: Callable[..., dict[str, Any]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of the `shared` functions to a command, which gets their results as its first argument."""

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = signature(command, eval_str=True).parameters.values()
        theirs = [signature(one, eval_str=True).parameters for one in shared]

        @wraps(command)
        def run_command(**given: Any) -> None:
            settings: dict[str, Any] = {}
            for one, names in zip(shared, theirs, strict=True):
                more = one(**{name: given.pop(name) for name in names})
                options = {**settings.get("options", {}), **more.get("options", {})}
                settings |= {**more, "options": options}
            command(settings, **given)

        listed = [*(one for names in theirs for one in names.values()), *own]
        described: Any = run_command
        described.__signature__ = Signature([one.replace(kind=Parameter.KEYWORD_ONLY) for one in listed])
        return run_command

    return extend


@with_options(evaluation_options, decoding_options, window_options)
def evaluate(
    settings: dict[str, Any],
    recipe: Annotated[
        list[str] | None,
        Option(
            "--recipe",
            "-r",
            help="Recipe or certified .json file; the first is the baseline (default: full, prophet). Repeatable.",
        ),
    ] = None,
    trace: Annotated[
        bool, Option("--trace", help="Save every step of every example, for `foretell trace`.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Evaluate recipes on a benchmark.

    Safe to interrupt: run the same command again to resume.

    foretell eval tiny --task sudoku --recipe full --recipe prophet \\
        --limit 200 --out results/sudoku

    foretell eval tiny --task prompts --data prompts.jsonl \\
        --layout choice --out results/mine

    foretell eval tiny --task fill --data masked.jsonl \\
        --recipe full --recipe threshold --out results/fills
    """
    from foretell.cli.progress import Meter  # noqa: PLC0415
    from foretell.evaluation.run import PreparedEvaluation  # noqa: PLC0415

    require_extra("lab")
    what = evaluation_of({**settings, "trace": trace}, tuple(recipe or ("full", "prophet")))
    with Meter("loading") as meter:
        bench = PreparedEvaluation.prepare(what, progress=meter.load)
    run_evaluation(bench)


def evaluation_of(settings: dict[str, Any], recipes: tuple[str, ...]) -> Evaluation:
    """Return the evaluation that the options of a command describe."""
    from foretell.evaluation.run import Evaluation  # noqa: PLC0415

    given = dict(settings)
    rule = {name: given.pop(name) for name in ("stop", "on_mismatch")}
    given["options"] = given["options"] | {name: value for name, value in rule.items() if value is not None}
    given["model"] = at_revision(given["model"], given.pop("revision"))
    return Evaluation(recipes=recipes, **given)


def run_evaluation(bench: PreparedEvaluation) -> None:
    """Decode what is missing, showing progress, and show the report."""
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.evaluation.records import read_records  # noqa: PLC0415
    from foretell.evaluation.run import run  # noqa: PLC0415

    bench.check()
    note(bench.notes())
    introduce(bench.engine)
    names = [one.name for one in bench.recipes]
    out = bench.evaluation.out
    there = [record for record in read_records(out) if record.recipe in names]
    with show_progress(bench.total, there, bench.graded) as tally:
        run(bench, tally.add)
    show_report(out)


def show_report(folder: Path) -> None:
    """Write the report of a results folder, and print its table."""
    from foretell.cli.console import out, say  # noqa: PLC0415
    from foretell.evaluation.report import report  # noqa: PLC0415

    made = report(folder)
    made.save(folder)
    console = out(None if out().is_terminal else 160)
    console.print(*made.tables(console.width), sep="")
    say(f"wrote {folder / 'report.md'} and report.json", style="dim")


@dataclass(slots=True)
class Tally:
    """Running accuracy and mean number of steps of every recipe."""

    total: int
    show: Any  # called with the tally after each result
    count: int = 0
    last: str = ""
    graded: bool = True  # whether the examples have right answers
    right: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    steps: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, record: Record) -> None:
        self.count_in(record)
        self.show(self)

    def count_in(self, record: Record) -> None:
        name = self.last = record.recipe
        self.count += 1
        self.seen[name] += 1
        self.right[name] += record.correct
        self.steps[name] += record.steps

    def line(self) -> str:
        """Return the progress of every recipe so far, or only of the latest one if there are many."""
        names = list(self.seen) if len(self.seen) <= SHOWN else [self.last]
        return " · ".join(
            f"{name} {self._accuracy(name)}in {self.steps[name] / self.seen[name]:.1f} steps" for name in names
        )

    def _accuracy(self, name: str) -> str:
        return f"{self.right[name] / self.seen[name]:.1%} " if self.graded else ""


@contextmanager
def show_progress(total: int, there: list[Record], graded: bool = True) -> Iterator[Tally]:
    """Show progress on stderr: a bar on a terminal, otherwise an occasional line."""
    from foretell.cli.console import err, say  # noqa: PLC0415

    console = err()
    if not console.is_terminal:
        every = max(1, total // LINES)

        def print_line(tally: Tally) -> None:
            if tally.count % every == 0 or tally.count == total:
                say(f"{tally.count}/{total}  {tally.line()}", style="dim")

        yield _with_earlier(Tally(total, print_line, graded=graded), there)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=total, completed=len(there))

        def move_bar(tally: Tally) -> None:
            progress.update(bar, completed=tally.count, description=tally.line())

        tally = _with_earlier(Tally(total, move_bar, graded=graded), there)
        move_bar(tally)
        yield tally


def _with_earlier(tally: Tally, there: list[Record]) -> Tally:
    """Count the records of an earlier run."""
    for record in there:
        tally.count_in(record)
    return tally

"""`foretell eval` and `foretell sweep`: a benchmark under several recipes, with a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

if TYPE_CHECKING:
    from foretell.lab.evaluate import Evaluation
    from foretell.lab.results import Record

SHOWN = 3  # recipes that fit a line of progress
LINES = 20  # lines of progress in a log, from start to end

Model = Annotated[str, Argument(help="A checkpoint folder, or a bundled model by its name.")]
Task = Annotated[str, Option("--task", "-t", help="The benchmark; an unknown name lists them.")]
Out = Annotated[Path, Option(help="Folder for results; the same command again goes on where it was.")]
Limit = Annotated[int | None, Option(help="Examples, chosen by the seed; default: all.")]
Seed = Annotated[int, Option(help="Of the choice of examples and everything random.")]
BatchSize = Annotated[int, Option(help="Examples decoded together.")]
Data = Annotated[Path | None, Option(help="The benchmark's file or folder; default: FORETELL_DATA.")]
Stop = Annotated[str | None, Option("--stop", help="A rule, or a certified one's .json, for every recipe that stops.")]
Trace = Annotated[bool, Option("--trace", help="Keep every step of every example, to replay.")]
Code = Annotated[bool, Option("--allow-code-execution", help="Run programs that the model wrote.")]
Workers = Annotated[int, Option(help="Processes; more than one have one thread each.")]
Threads = Annotated[int | None, Option(help="Of torch; default: 1 if the model is small.")]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str | None, Option(help="float32, bfloat16 or float16.")]


def evaluate(
    model: Model,
    task: Task,
    out: Out,
    recipe: Annotated[list[str] | None, Option("--recipe", "-r", help="Compared with the first one given.")] = None,
    stop: Stop = None,
    limit: Limit = None,
    seed: Seed = 0,
    batch_size: BatchSize = 8,
    data: Data = None,
    trace: Trace = False,
    allow_code_execution: Code = False,
    workers: Workers = 1,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Evaluate recipes on a benchmark; killed at any moment, the same command goes on where it was.

    foretell eval tiny --task sudoku --recipe full --recipe prophet --limit 200 --out results/sudoku
    """
    given = dict(locals())
    _run(given, tuple(recipe or ("full", "prophet")))


def sweep(
    model: Model,
    task: Task,
    out: Out,
    vary: Annotated[list[str], Option("--vary", "-v", help="steps=16,32,64; may be given several times.")],
    base: Annotated[list[str] | None, Option("--base", "-b", help="The recipe to vary; default: prophet.")] = None,
    stop: Stop = None,
    limit: Limit = None,
    seed: Seed = 0,
    batch_size: BatchSize = 8,
    data: Data = None,
    trace: Trace = False,
    allow_code_execution: Code = False,
    workers: Workers = 1,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Evaluate every combination of some parameters' values, compared with the recipe as it is.

    foretell sweep tiny --task word --base prophet --vary steps=16,32 --vary block_length=8,16 --out results/sweep
    """
    from foretell.lab.sweep import crossed  # noqa: PLC0415

    given = dict(locals())
    _run(given, crossed(base or ["prophet"], vary))


_PASSED = (
    *("model", "task", "out", "limit", "seed", "batch_size", "trace", "allow_code_execution"),
    *("workers", "threads", "device", "dtype"),
)


def _run(given: dict[str, Any], recipes: tuple[str, ...]) -> None:
    from foretell.cli.console import note, out, say  # noqa: PLC0415
    from foretell.lab.evaluate import Bench, Evaluation, run  # noqa: PLC0415
    from foretell.lab.report import report  # noqa: PLC0415
    from foretell.lab.results import read_records  # noqa: PLC0415

    options = {} if given["stop"] is None else {"stop": given["stop"]}
    what: Evaluation = Evaluation(
        recipes=recipes, source=given["data"], options=options, **{name: given[name] for name in _PASSED}
    )
    bench = Bench.prepare(what)
    note(bench.notes())
    there = [record for record in read_records(what.out) if record.recipe in recipes]
    with following(bench.total, there) as tally:
        run(bench, tally.add)
    made = report(what.out)
    made.save(what.out)
    console = out(None if out().is_terminal else 160)
    console.print(made.table())
    say(f"wrote {what.out / 'report.md'} and report.json", style="dim")


@dataclass(slots=True)
class Tally:
    """Running accuracy and mean steps of every recipe, for whoever looks."""

    total: int
    show: Any  # what to do with a line, given how many results there are
    count: int = 0
    last: str = ""
    graded: bool = True  # whether there are right answers to count
    right: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    steps: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, record: Record) -> None:
        self.enter(record)
        self.show(self)

    def enter(self, record: Record) -> None:
        name = self.last = record.recipe
        self.count += 1
        self.seen[name] += 1
        self.right[name] += record.correct
        self.steps[name] += record.steps

    def line(self) -> str:
        """Every recipe so far; of many, the last one that had a result."""
        names = list(self.seen) if len(self.seen) <= SHOWN else [self.last]
        return " · ".join(
            f"{name} {self._accuracy(name)}in {self.steps[name] / self.seen[name]:.1f} steps" for name in names
        )

    def _accuracy(self, name: str) -> str:
        return f"{self.right[name] / self.seen[name]:.1%} " if self.graded else ""


@contextmanager
def following(total: int, there: list[Record], graded: bool = True) -> Iterator[Tally]:
    """A bar on a terminal; elsewhere a line from time to time."""
    from foretell.cli.console import err, say  # noqa: PLC0415

    console = err()
    if not console.is_terminal:
        every = max(1, total // LINES)

        def tell(tally: Tally) -> None:
            if tally.count % every == 0 or tally.count == total:
                say(f"{tally.count}/{total}  {tally.line()}", style="dim")

        yield _begun(Tally(total, tell, graded=graded), there)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=total, completed=len(there))

        def move(tally: Tally) -> None:
            progress.update(bar, completed=tally.count, description=tally.line())

        yield _begun(Tally(total, move, graded=graded), there)


def _begun(tally: Tally, there: list[Record]) -> Tally:
    for record in there:
        tally.enter(record)
    return tally

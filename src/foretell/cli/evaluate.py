"""`foretell eval` and `foretell sweep`: a benchmark under several recipes, with a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from foretell.cli.generate import CHAT
from foretell.extras import require_extra

if TYPE_CHECKING:
    from foretell.evaluation.records import Record

SHOWN = 3  # recipes that fit a line of progress
LINES = 20  # lines of progress in a log, from start to end


def decoding(
    *,
    limit: Annotated[int | None, Option(help="Examples, chosen by the seed; default: all.")] = None,
    seed: Annotated[int, Option(help="Of the choice of examples and everything random.")] = 0,
    batch_size: Annotated[int, Option(help="Examples decoded together.")] = 8,
    data: Annotated[Path | None, Option(help="The task's file, or a folder with it; default: FORETELL_DATA.")] = None,
    allow_code_execution: Annotated[
        bool, Option("--allow-code-execution", help="Run programs that the model wrote.")
    ] = False,
    workers: Annotated[int, Option(help="Processes; more than one have one thread each.")] = 1,
    threads: Annotated[int | None, Option(help="Of torch; default: 1 if the model is small.")] = None,
    device: Annotated[str, Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    dtype: Annotated[str | None, Option(help="float32, bfloat16 or float16.")] = None,
    compile_: Annotated[bool, Option("--compile", help="Use torch.compile.")] = False,
    quantize: Annotated[str | None, Option(help="int8: round the weights.")] = None,
) -> dict[str, Any]:
    """What every command takes that decodes a benchmark."""
    given = dict(locals())
    return given | {"source": given.pop("data"), "compile": given.pop("compile_")}


def window(
    *,
    layout: Annotated[str | None, Option(help="For prompts: one of the layouts that the model describes.")] = None,
    max_new_tokens: Annotated[int | None, Option(help="Positions of the window.")] = None,
    suffix: Annotated[str | None, Option(help="Text pinned before the answer.")] = None,
    answer_length: Annotated[int | None, Option(help="Tokens of the answer.")] = None,
    answer_start: Annotated[int | None, Option(help="Offset of the answer; default: at the end.")] = None,
    chat: Annotated[bool | None, Option("--chat/--raw", help=CHAT)] = None,
) -> dict[str, Any]:
    """What every command takes that decodes your own prompts."""
    return {"options": {name: value for name, value in locals().items() if value is not None}}


def _asked(
    *,
    model: Annotated[str, Argument(help="A checkpoint folder, or a bundled model by its name.")],
    task: Annotated[str, Option("--task", "-t", help="What to decode; `foretell tasks` lists them.")],
    out: Annotated[Path, Option(help="Folder for results; the same command again, or with a larger limit, goes on.")],
    stop: Annotated[str | None, Option(help="A rule, or a certified one's .json, for every recipe that stops.")] = None,
    trace: Annotated[bool, Option("--trace", help="Keep every step of every example, to replay.")] = False,
    strict: Annotated[
        bool, Option("--strict", help="Read only answers that the text states, never its last number.")
    ] = False,
) -> dict[str, Any]:
    """What every evaluation takes."""
    return dict(locals())


def sharing(*shared: Callable[..., dict[str, Any]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with the options of others too: what they make of them reaches it as its first argument."""

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = signature(command, eval_str=True).parameters.values()
        theirs = [signature(one, eval_str=True).parameters for one in shared]

        @wraps(command)
        def whole(**given: Any) -> None:
            asked: dict[str, Any] = {}
            for one, names in zip(shared, theirs, strict=True):
                more = one(**{name: given.pop(name) for name in names})
                options = {**asked.get("options", {}), **more.get("options", {})}
                asked |= {**more, "options": options}
            command(asked, **given)

        listed = [*(one for names in theirs for one in names.values()), *own]
        described: Any = whole
        described.__signature__ = Signature([one.replace(kind=Parameter.KEYWORD_ONLY) for one in listed])
        return whole

    return extended


@sharing(_asked, decoding, window)
def evaluate(
    asked: dict[str, Any],
    recipe: Annotated[list[str] | None, Option("--recipe", "-r", help="Compared with the first one given.")] = None,
) -> None:
    """Evaluate recipes on a task. Safe to interrupt: run the same command again to resume.

    foretell eval tiny --task sudoku --recipe full --recipe prophet --limit 200 --out results/sudoku

    foretell eval tiny --task prompts --data prompts.jsonl --layout choice --out results/mine
    """
    _run(asked, tuple(recipe or ("full", "prophet")))


@sharing(_asked, decoding, window)
def sweep(
    asked: dict[str, Any],
    vary: Annotated[list[str], Option("--vary", "-v", help="steps=16,32,64; may be given several times.")],
    base: Annotated[list[str] | None, Option("--base", "-b", help="The recipe to vary; default: prophet.")] = None,
) -> None:
    """Evaluate every combination of some parameters' values, compared with the recipe as it is.

    foretell sweep tiny --task word --base prophet --vary steps=16,32 --vary block_length=8,16 --out results/sweep
    """
    from foretell.evaluation.sweep import expand_sweep  # noqa: PLC0415

    _run(asked, expand_sweep(base or ["prophet"], vary))


def _run(asked: dict[str, Any], recipes: tuple[str, ...]) -> None:
    from foretell.cli.console import note, out, say  # noqa: PLC0415
    from foretell.evaluation.records import read_records  # noqa: PLC0415
    from foretell.evaluation.report import report  # noqa: PLC0415
    from foretell.evaluation.run import Evaluation, PreparedEvaluation, run  # noqa: PLC0415

    require_extra("lab")
    stop = asked.pop("stop")
    if stop is not None:
        asked["options"]["stop"] = stop
    what = Evaluation(recipes=recipes, **asked)
    bench = PreparedEvaluation.prepare(what)
    bench.check()
    note(bench.notes())
    there = [record for record in read_records(what.out) if record.recipe in recipes]
    with following(bench.total, there, bench.graded) as tally:
        run(bench, tally.add)
    made = report(what.out)
    made.save(what.out)
    console = out(None if out().is_terminal else 160)
    console.print(*made.tables(console.width), sep="")
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

        tally = _begun(Tally(total, move, graded=graded), there)
        move(tally)
        yield tally


def _begun(tally: Tally, there: list[Record]) -> Tally:
    for record in there:
        tally.enter(record)
    return tally

"""`foretell tune`: find the fastest recipe for a model and its prompts that keeps a chosen risk."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from foretell.cli.evaluate import decoding_options, window_options, with_options
from foretell.cli.model import Model, at_revision, introduce
from foretell.cli.usage import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from foretell.certify.decode_store import Stage
    from foretell.certify.tune_tables import Table
    from foretell.engine.certificate import Certificate
    from foretell.evaluation.records import Record

DECISIONS = "Decisions"
LOSS = (
    "What counts as a loss. answer: the answer changed; text: anything changed; tokens: share of tokens that changed; "
    "success: a right answer was lost (needs answers); mine.py:function: your own function."
)


@with_options(decoding_options, window_options)
def tune(
    settings: dict[str, Any],
    model: Model,
    out: Annotated[Path, Option(help="File for the result, which other commands accept as --recipe.")] = Path(
        "tuned.json"
    ),
    prompts: Annotated[
        Path | None,
        Option(help="File of your prompts: JSON lines, or .txt with one per line.", rich_help_panel=EXAMPLES),
    ] = None,
    texts: Annotated[
        Path | None, Option(help="File of texts with masks to fill, instead of prompts.", rich_help_panel=EXAMPLES)
    ] = None,
    task: Annotated[
        str | None,
        Option("--task", "-t", help="Task, instead of prompts (see `foretell tasks`).", rich_help_panel=EXAMPLES),
    ] = None,
    risk: Annotated[float, Option(help="Largest mean loss that is allowed; 0.01 is 1%.")] = 0.01,
    confidence: Annotated[float, Option(help="Probability with which the certificate holds.")] = 0.95,
    loss: Annotated[str, Option(help=LOSS)] = "answer",
    cost: Annotated[str, Option(help="Cost to reduce: steps, forwards, columns or seconds.")] = "forwards",
    against: Annotated[str, Option(help="Recipe to compare with, which never stops early.")] = "full",
    pilot: Annotated[
        int | None,
        Option(help="Number of examples for the search (default: a quarter, at most 400).", rich_help_panel=EXAMPLES),
    ] = None,
    calibration: Annotated[
        int | None,
        Option(help="Number of examples for the certificate (default: all others).", rich_help_panel=EXAMPLES),
    ] = None,
    work: Annotated[Path | None, Option(help="Folder for intermediate results (default: next to the result).")] = None,
    questions: Annotated[
        Path | None,
        Option(
            help="JSON file of questions for typed decisions (see `foretell decide`); prompts are their inputs.",
            rich_help_panel=DECISIONS,
        ),
    ] = None,
    template: Annotated[str | None, Option(help="One of the model's templates.", rich_help_panel=DECISIONS)] = None,
    coverage: Annotated[
        float,
        Option(help='Coverage of conformal sets, learned from prompts with an "answer".', rich_help_panel=DECISIONS),
    ] = 0.95,
) -> None:
    """Find the fastest recipe for your prompts that keeps a chosen risk.

    The risk is the expected loss, such as the share of answers that change. Writes a certified recipe (.json) for the
    option --recipe of other commands, with a report (.md) and a picture (.png) next to it. Safe to interrupt: run the
    same command again to resume.

    foretell tune tiny --task choice --limit 1200 --risk 0.01 --out tuned.json

    foretell generate tiny "..." --recipe tuned.json
    """
    from foretell.certify.decodings import evaluation_for  # noqa: PLC0415
    from foretell.certify.search import RiskGoal  # noqa: PLC0415
    from foretell.certify.tune import Tuning  # noqa: PLC0415
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.cli.progress import Meter  # noqa: PLC0415

    goal = RiskGoal(risk, confidence, loss, against=against, cost=cost)
    options = settings.pop("options")
    model = at_revision(model, settings.pop("revision"))
    asked: dict[str, Any] = {"texts": texts, "questions": questions, "template": template}
    what = evaluation_for(model, task, prompts, against, out, work, options, **asked, **settings)
    with show_stages() as stage:
        with Meter("loading") as meter:
            sizes: dict[str, Any] = {"pilot": pilot, "calibration": calibration, "coverage": coverage}
            plan = Tuning.prepare(what, goal, **sizes, stage=stage, progress=meter.load)
        note(plan.notes)
        introduce(plan.bench.engine)
        made = plan.run()
    made.save(out)
    report(made.certificate, out)


@contextmanager
def show_stages() -> Iterator[Stage]:
    """Show one bar for the decodings of the present stage on a terminal, otherwise one line per stage."""
    from foretell.cli.console import err, say  # noqa: PLC0415

    console = err()
    if not console.is_terminal:

        def print_stage(title: str, total: int) -> Any:
            say(f"{title}: {total} decodings", style="dim")
            return lambda _: None

        yield print_stage
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None)

        def show(title: str, total: int) -> Any:
            progress.reset(bar, total=total, description=title)

            def advance(_: Record) -> None:
                progress.advance(bar)

            return advance

        yield show


def report(found: Certificate, out: Path) -> None:
    """Print the tables of a tuned file, and write them as a page and a picture next to it."""
    from foretell.certify.tune_tables import groups_above, make_tables, write_markdown  # noqa: PLC0415
    from foretell.cli.console import note, say  # noqa: PLC0415
    from foretell.cli.console import out as console  # noqa: PLC0415
    from foretell.storage import write_file  # noqa: PLC0415

    tables, screen = make_tables(found), console()
    for table in tables:
        screen.print(_rich_table(table), "")
    screen.print(describe(found), soft_wrap=not screen.is_terminal)
    note([f"above the promised risk: {line}" for line in groups_above(found)])
    picture = _draw(found, out)
    page = out.with_suffix(".md")
    write_file(page, write_markdown(found, tables, None if picture is None else picture.name))
    written = [out, page, *([] if picture is None else [picture])]
    say(f"wrote {', '.join(map(str, written))}", style="dim")


def describe(found: Certificate) -> str:
    """Return the result in a few sentences."""
    says = found.says[0].upper() + found.says[1:]
    if not found.certified:
        return f"Nothing is certified, so the recipe stays {found.against}: {found.says}."
    alone = (found.report or {}).get("transfer_alone") or {}
    share = f" The transfer alone: {alone['speedup']:.2f}x." if alone.get("stops") else ""
    return f"{found.recipe}\n{found.speedup:.2f}x fewer {found.cost} on the calibration set.{share}\n{says}."


def _draw(found: Certificate, out: Path) -> Path | None:
    """Write the picture. Returns None if there is nothing to draw, or nothing to draw with."""
    from foretell.cli.console import note  # noqa: PLC0415
    from foretell.extras import is_installed  # noqa: PLC0415

    if not found.report:
        return None
    if not is_installed("plots"):  # the result is worth more than its picture
        note(["no picture is drawn, because matplotlib is not installed: pip install 'foretell[plots]'"])
        return None
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from foretell.plots.ladder import plot_ladder  # noqa: PLC0415

    picture = out.with_suffix(".png")
    plot_ladder(found).savefig(picture, dpi=150)
    return picture


def _rich_table(table: Table) -> Any:
    from rich.table import Table as RichTable  # noqa: PLC0415

    shown = RichTable(
        box=None, padding=(0, 2, 0, 0), header_style="dim", title=table.title, title_justify="left", title_style="bold"
    )
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    return shown

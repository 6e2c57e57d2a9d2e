"""`foretell calibrate`: the fastest stopping rule that keeps a risk, with its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from foretell.cli.evaluate import decoding, sharing, window

if TYPE_CHECKING:
    from rich.table import Table

    from foretell.certify.calibrate import Calibrated

NEAR = 4  # members of the family shown on either side of the boldest certified one


@sharing(decoding, window)
def calibrate(
    rest: dict[str, Any],
    model: Annotated[str, Argument(help="A checkpoint folder, or a bundled model by its name.")],
    out: Annotated[Path, Option(help="The rule's file; use it with --stop.")] = Path("rule.json"),
    task: Annotated[str | None, Option("--task", "-t", help="What to decode; `foretell tasks` lists them.")] = None,
    prompts: Annotated[Path | None, Option(help="Or a file of prompts; success needs an answer in each.")] = None,
    risk: Annotated[float, Option(help="The share of examples that may lose by stopping early.")] = 0.01,
    confidence: Annotated[float, Option(help="How sure that has to be.")] = 0.95,
    loss: Annotated[
        str, Option(help="consistency: another answer than in full; success: wrong where that is right.")
    ] = "consistency",
    family: Annotated[
        list[str] | None,
        Option(
            "--family", "-f", help="The rules to choose from, one or several; default: all; an unknown name lists them."
        ),
    ] = None,
    judge: Annotated[Path | None, Option(help="Or a trained judge's file, whose bar is chosen.")] = None,
    recipe: Annotated[str, Option("--recipe", "-r", help="What it is to hold for; its own rule is left out.")] = "full",
    against: Annotated[
        str | None, Option(help="Another recipe whose answers count; default: the same without stopping.")
    ] = None,
    work: Annotated[Path | None, Option(help="Folder for the decodings; default: beside the rule.")] = None,
    grid: Annotated[bool, Option("--grid", help="Show every member of the family, not only the nearest.")] = False,
) -> None:
    """Choose the fastest stopping rule that keeps a risk; killed at any moment, the same command goes on.

    foretell calibrate tiny --task choice --limit 2000 --risk 0.01 --confidence 0.95 --out rule.json

    foretell generate tiny "..." --layout choice --recipe prophet --stop rule.json
    """
    from foretell.certify.calibrate import Calibration  # noqa: PLC0415
    from foretell.certify.decodings import evaluation_for  # noqa: PLC0415
    from foretell.certify.families import ALL, Family, judge_family  # noqa: PLC0415
    from foretell.certify.search import RiskGoal  # noqa: PLC0415
    from foretell.cli.console import note, say  # noqa: PLC0415
    from foretell.cli.console import out as console  # noqa: PLC0415
    from foretell.cli.evaluate import following  # noqa: PLC0415

    families: list[str | Family] = [*(family or []), *([] if judge is None else [judge_family(judge)])]
    goal = RiskGoal(risk, confidence, loss, families or ALL, against)
    options = rest.pop("options")
    plan = Calibration.prepare(evaluation_for(model, task, prompts, recipe, out, work, options, **rest), goal)
    note(plan.notes)
    with following(plan.total, plan.finished, graded=plan.bench.graded) as tally:
        made = plan.run(tally.add)
    made.certificate.save(out)
    screen = console()
    if len(made.searches) > 1:
        screen.print(overview(made), "")
    screen.print(table(made, everything=grid))
    screen.print(closing(made), soft_wrap=not screen.is_terminal)
    say(f"wrote {out}", style="dim")


def closing(made: Calibrated) -> str:
    """What was found, in words."""
    found = made.certificate
    if not found.certified:
        return f"Nothing is certified, so the rule never stops: {found.says}."
    says = found.says[0].upper() + found.says[1:]
    return f"{found.stop}: {found.speedup:.2f}x fewer steps on the calibration set.\n{says}."


def overview(made: Calibrated) -> Table:
    """Where the search along each family ended."""
    shown = _table("The boldest certified rule of each family", ("family", "risk", "speedup", "rule"))
    for search in made.searches:
        last = search.boldest
        row = (
            ("", "1.00x", "never")
            if last is None
            else (f"{last.empirical_risk:.2%}", f"{last.speedup:.2f}x", last.stop)
        )
        shown.add_row(search.family.name, *row, style="bold" if search is made.search else "")
    return shown


def table(made: Calibrated, everything: bool) -> Table:
    """The search along the rule's family, or the part of it where it ended."""
    from rich.text import Text  # noqa: PLC0415

    found, trials = made.certificate, made.search.trials
    title = f"{found.family} on {found.task or 'prompts'}, n = {found.examples}, loss: {found.loss}"
    shown = _table(title, (made.search.family.knob, "risk", f"p (risk > {found.risk:g})", "speedup", "certified"))
    last = sum(trial.certified for trial in trials)
    for index, one in enumerate(trials):
        if everything or last - NEAR <= index < last + NEAR:
            verdict = Text("yes", style="green") if one.certified else Text("no", style="red")
            numbers = (f"{one.setting:g}", f"{one.empirical_risk:.2%}", f"{one.p_value:.2g}", f"{one.speedup:.2f}x")
            shown.add_row(*numbers, verdict, style="bold" if index == last - 1 else "")
    return shown


def _table(title: str, headings: Sequence[str]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left")
    for heading in headings:
        words = heading in ("family", "rule")
        shown.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return shown

"""`foretell calibrate`: choose the fastest stopping rule within a given risk and write its certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from foretell.cli.evaluate import decoding_options, window_options, with_options
from foretell.cli.model import Model, at_revision, introduce
from foretell.cli.tune import LOSS
from foretell.cli.usage import EXAMPLES

if TYPE_CHECKING:
    from rich.table import Table

    from foretell.certify.calibrate import Calibrated

NEAR = 4  # rules shown on either side of the fastest certified one


@with_options(decoding_options, window_options)
def calibrate(
    settings: dict[str, Any],
    model: Model,
    out: Annotated[
        Path, Option(help="File for the certified rule, which other commands accept as --recipe or --stop.")
    ] = Path("rule.json"),
    task: Annotated[
        str | None, Option("--task", "-t", help="Task to decode (see `foretell tasks`).", rich_help_panel=EXAMPLES)
    ] = None,
    prompts: Annotated[
        Path | None, Option(help="File of prompts, instead of a task.", rich_help_panel=EXAMPLES)
    ] = None,
    risk: Annotated[float, Option(help="Largest mean loss that is allowed; 0.01 is 1%.")] = 0.01,
    confidence: Annotated[float, Option(help="Probability with which the certificate holds.")] = 0.95,
    loss: Annotated[
        str,
        Option(help=LOSS),
    ] = "answer",
    family: Annotated[
        list[str] | None,
        Option(
            "--family",
            "-f",
            help="Family of rules to choose from (default: all; an unknown name lists them). Repeatable.",
        ),
    ] = None,
    judge: Annotated[Path | None, Option(help="File of a trained judge, as another family to choose from.")] = None,
    recipe: Annotated[
        str, Option("--recipe", "-r", help="Recipe to certify the rule for; its own stopping rule is ignored.")
    ] = "full",
    against: Annotated[
        str | None, Option(help="Recipe to compare with (default: the same recipe without stopping).")
    ] = None,
    work: Annotated[Path | None, Option(help="Folder for intermediate results (default: next to the rule).")] = None,
    grid: Annotated[
        bool, Option("--grid", help="Show every rule of the family, not only those next to the chosen one.")
    ] = False,
) -> None:
    """Find the fastest stopping rule that keeps a chosen risk.

    The risk is the expected loss, such as the share of answers that change. Writes the rule with its certificate. Safe
    to interrupt: run the same command again to resume.

    foretell calibrate tiny --task choice --limit 2000 --risk 0.01 \\
        --out rule.json

    foretell generate tiny "..." --recipe rule.json
    """
    from foretell.certify.calibrate import Calibration  # noqa: PLC0415
    from foretell.certify.decodings import evaluation_for  # noqa: PLC0415
    from foretell.certify.search import RiskGoal  # noqa: PLC0415
    from foretell.cli.console import note, say  # noqa: PLC0415
    from foretell.cli.console import out as console  # noqa: PLC0415
    from foretell.cli.evaluate import show_progress  # noqa: PLC0415
    from foretell.cli.progress import Meter  # noqa: PLC0415
    from foretell.policies.stop.families import ALL, Family, judge_family  # noqa: PLC0415

    families: list[str | Family] = [*(family or []), *([] if judge is None else [judge_family(judge)])]
    goal = RiskGoal(risk, confidence, loss, families or ALL, against)
    options = settings.pop("options")
    model = at_revision(model, settings.pop("revision"))
    what = evaluation_for(model, task, prompts, recipe, out, work, options, **settings)
    with Meter("loading") as meter:
        plan = Calibration.prepare(what, goal, meter.load)
    note(plan.notes)
    introduce(plan.bench.engine)
    with show_progress(plan.total, plan.finished, graded=plan.bench.graded) as tally:
        made = plan.run(tally.add)
    made.certificate.save(out)
    screen = console()
    if len(made.searches) > 1:
        screen.print(families_table(made), "")
    screen.print(rules_table(made, everything=grid))
    screen.print(describe(made), soft_wrap=not screen.is_terminal)
    say(f"wrote {out}", style="dim")


def describe(made: Calibrated) -> str:
    """Return the result as text."""
    from foretell.recipes.text import format_value  # noqa: PLC0415

    found = made.certificate
    if not found.certified:
        return f"Nothing is certified, so the rule never stops: {found.says}."
    says = found.says[0].upper() + found.says[1:]
    return f"{format_value(found.rule)}: {found.speedup:.2f}x fewer steps on the calibration set.\n{says}."


def _rule_of(recipe: str) -> str:
    from foretell.recipes.presets import parse  # noqa: PLC0415
    from foretell.recipes.text import format_value  # noqa: PLC0415

    return format_value(parse(recipe).stop)


def families_table(made: Calibrated) -> Table:
    """Return one row per family with its fastest certified rule."""
    shown = _table("The fastest certified rule of each family", ("family", "risk", "speedup", "rule"))
    for search in made.searches:
        last = search.fastest
        row = (
            ("", "1.00x", "never")
            if last is None
            else (f"{last.empirical_risk:.2%}", f"{last.speedup:.2f}x", _rule_of(last.rung))
        )
        shown.add_row(search.ladder.name, *row, style="bold" if search is made.search else "")
    return shown


def rules_table(made: Calibrated, everything: bool) -> Table:
    """Return one row per tested rule of the chosen family, or only those near the chosen rule."""
    from rich.text import Text  # noqa: PLC0415

    found, trials = made.certificate, made.search.trials
    title = f"{found.ladder} on {found.task or 'prompts'}, n = {found.examples}, loss: {found.loss}"
    shown = _table(title, (made.search.ladder.knob, "risk", f"p (risk > {found.risk:g})", "speedup", "certified"))
    last = sum(trial.certified for trial in trials)
    for index, one in enumerate(trials):
        if everything or last - NEAR <= index < last + NEAR:
            verdict = Text("yes", style="green") if one.certified else Text("no", style="red")
            setting = made.search.ladder.settings[index]
            numbers = (f"{setting:g}", f"{one.empirical_risk:.2%}", f"{one.p_value:.2g}", f"{one.speedup:.2f}x")
            shown.add_row(*numbers, verdict, style="bold" if index == last - 1 else "")
    return shown


def _table(title: str, headings: Sequence[str]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left")
    for heading in headings:
        words = heading in ("family", "rule")
        shown.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return shown

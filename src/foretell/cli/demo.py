"""`foretell demo`: one problem of each task, decoded to the end and with Prophet, side by side on one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.cli.race import Race

MODEL = "tiny"
RECIPE = "prophet stop.reduce=min"  # a mean over several tokens can hide the one that is still unsure
SEED = 2025
QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"


def demo(
    seconds: Annotated[float, Option(help="Screen time of the slower decoder of each pair.")] = 5.0,
) -> None:
    """Decode a few problems with and without Prophet, side by side."""
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.cli.model import open_engine  # noqa: PLC0415
    from foretell.cli.race import play, run  # noqa: PLC0415

    console, engine = out(), open_engine(MODEL)
    console.print(Text("The bundled model: the whole budget against Prophet, on one clock.", style="bold"), "\n")
    races = []
    for task in engine.layouts["layouts"]:
        race = run(engine, task, _problem(task), RECIPE, {"layout": task})
        play(race, console, seconds)
        races.append(race)
    _table(console, races)
    _farewell(console)


def _problem(task: str) -> str:
    """A problem that the model was never trained on."""
    import numpy as np  # noqa: PLC0415

    from foretell.lab.tasks import TASKS, draw  # noqa: PLC0415

    if task == "word" or task not in TASKS:
        return QUESTION
    return draw(TASKS[task], np.random.default_rng(SEED), 1, test=True)[0].prompt


def _table(console: Console, races: list[Race]) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "full", "prophet", "fewer steps", "full", "prophet", "less time", "same answer"):
        table.add_column(title, no_wrap=True, justify="left" if not title else "right")
    for race in races:
        full, early = race.full.done, race.early.done
        steps = (f"{full.steps} steps", f"{early.steps} steps", f"{full.steps / early.steps:.2f}x")
        slow, fast = race.full.seconds, race.early.seconds
        times = (f"{slow:.3f} s", f"{fast:.3f} s", f"{slow / fast:.2f}x")
        same = full.answer == early.answer if full.answer is not None else full.text == early.text
        table.add_row(Text(race.title, style="bold"), *steps, *times, "yes" if same else "no")
    console.print(table)


def _farewell(console: Console) -> None:
    from pathlib import Path  # noqa: PLC0415

    from rich.text import Text  # noqa: PLC0415

    docs = Path(__file__).parents[3] / "docs"
    lines = [
        "",
        f'Watch one:    foretell generate {MODEL} "{QUESTION}" --recipe prophet --watch',
        "Look closer:  add --trace run.npz, then: foretell trace show run.npz",
        "All recipes:  foretell recipes",
    ]
    if docs.is_dir():
        pictures = ", with pictures and measured results in docs/results/" if (docs / "results").is_dir() else ""
        lines.append(f"Docs:         docs/{pictures}")
    for line in lines:
        console.print(Text(line, style="dim"), soft_wrap=True)

"""`foretell demo`: one problem per task, decoded in full and with Prophet, side by side on the same time scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from foretell.cli.generate import LONGEST_PAUSE
from foretell.errors import RequestError, within

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.cli.race import Race
    from foretell.engine.completion import Completion
    from foretell.tasks import Problem

MODEL = "tiny"
RECIPE = "prophet stop.reduce=min"  # a mean over several tokens can hide the one that is still unsure
SEED = 2025
RIGHT = {(True, True): "both", (False, False): "neither", (True, False): "full", (False, True): "Prophet"}
QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"


def demo(
    seconds: Annotated[float, Option(help="Seconds on screen for the slower decoder of each pair.")] = 5.0,
) -> None:
    """Decode a few problems with and without Prophet, side by side."""
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.cli.model import introduce, open_engine  # noqa: PLC0415
    from foretell.cli.race import play, run  # noqa: PLC0415

    within("--seconds", seconds, 0.0, LONGEST_PAUSE, RequestError)
    console, engine = out(), open_engine(MODEL)
    introduce(engine)
    heading = f"The bundled model: full decoding (full) and Prophet ({RECIPE}), on the same clock."
    console.print(Text(heading, style="bold"), "\n")
    races = []
    for task in engine.layouts["layouts"]:
        problem = _choose_problem(task)
        race = run(engine, task, problem.prompt, RECIPE, {"layout": task})
        play(race, console, seconds)
        races.append((race, problem))
    _print_table(console, races)
    _print_next_steps(console)


def _choose_problem(task: str) -> Problem:
    """Return a problem that the model was not trained on."""
    import numpy as np  # noqa: PLC0415

    from foretell.tasks import TASKS, Problem, draw  # noqa: PLC0415

    if task == "word" or task not in TASKS:
        return Problem("3*4;12-5", QUESTION, (), TASKS["word"].suffix, "7", 0)
    return draw(TASKS[task], np.random.default_rng(SEED), 1, test=True)[0]


def _is_right(task: str, problem: Problem, done: Completion) -> bool:
    """Return whether the answer is right, according to the task's own grader."""
    from foretell.tasks import TASKS  # noqa: PLC0415

    return TASKS.get(task, TASKS["word"]).check(problem, done.text)


def _print_table(console: Console, races: list[tuple[Race, Problem]]) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    recipe = RECIPE.replace(" ", "\n")
    for title in ("", "full", recipe, "fewer\nsteps", "less\ntime", "same\nanswer", "right\nanswer"):
        table.add_column(title, no_wrap=True, justify="left" if not title else "right")
    for race, problem in races:
        full, early = race.full.done, race.early.done
        took = (f"{film.done.steps} steps {film.seconds:.3f} s" for film in (race.full, race.early))
        ratios = (f"{full.steps / early.steps:.2f}x", f"{race.full.seconds / race.early.seconds:.2f}x")
        same = full.answer == early.answer if full.answer is not None else full.text == early.text
        right = RIGHT[_is_right(race.title, problem, full), _is_right(race.title, problem, early)]
        table.add_row(Text(race.title, style="bold"), *took, *ratios, "yes" if same else "no", right)
    console.print(table)


def _print_next_steps(console: Console) -> None:
    from pathlib import Path  # noqa: PLC0415

    from rich.text import Text  # noqa: PLC0415

    docs = Path(__file__).parents[3] / "docs"
    lines = [
        "",
        f'Watch one:    foretell generate {MODEL} "{QUESTION}" --recipe "{RECIPE}" --watch',
        "Look closer:  add --trace run.npz, then: foretell trace show run.npz",
        "All recipes:  foretell recipes",
    ]
    if docs.is_dir():
        pictures = ", with pictures and measured results in docs/results/" if (docs / "results").is_dir() else ""
        lines.append(f"Docs:         docs/{pictures}")
    for line in lines:
        console.print(Text(line, style="dim"), soft_wrap=True)

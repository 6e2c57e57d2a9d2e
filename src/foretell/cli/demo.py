"""`foretell demo`: one problem per task, decoded with three recipes and shown side by side."""

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
RECIPES = {
    "full": "full",
    "prophet": "prophet stop.reduce=min",  # a mean over several tokens can hide the one that is still unsure
    "swift": "swift",
}
SEED = 2025
DRAWN, CHOSEN = 4, {"choice": 2, "sudoku": 2, "countdown": 2}  # held-out problems that all three recipes solve
SHORT = "Tom has 7 apples. He eats 5. How many apples are left?"
QUESTION = "Tom has 3 boxes with 4 apples each. He eats 5. How many apples are left?"


def demo(
    seconds: Annotated[float, Option(help="Seconds on screen for the slowest recipe of each problem.")] = 4.0,
) -> None:
    """Watch three recipes solve the same problems side by side.

    full takes all steps, prophet stops as soon as the answer is settled, and swift also fills many masks per step.
    """
    from rich.text import Text  # noqa: PLC0415

    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.cli.model import introduce, open_engine  # noqa: PLC0415
    from foretell.cli.race import play, run  # noqa: PLC0415

    within("--seconds", seconds, 0.0, LONGEST_PAUSE, RequestError)
    console, engine = out(), open_engine(MODEL)
    introduce(engine)
    heading = f"{engine.name}: full decoding, prophet ({RECIPES['prophet']}) and swift, side by side."
    console.print(Text(heading, style="bold"), "\n")
    races = []
    for task in engine.layouts["layouts"]:
        problem = choose_problem(task)
        race = run(engine, task, problem.prompt, RECIPES, {"layout": task})
        play(race, console, seconds)
        races.append((race, problem))
    _print_table(console, races)
    _print_next_steps(console)


def choose_problem(task: str) -> Problem:
    """Return a problem that the bundled model was not trained on, and that it solves with every recipe of the demo."""
    import numpy as np  # noqa: PLC0415

    from foretell.tasks import TASKS, Problem, draw  # noqa: PLC0415

    if task not in CHOSEN:
        return Problem("3*4;12-5", QUESTION, (), TASKS["word"].suffix, "7", 0)
    return draw(TASKS[task], np.random.default_rng(SEED), DRAWN, test=True)[CHOSEN[task]]


def _is_right(task: str, problem: Problem, done: Completion) -> bool:
    """Return whether the answer is right, according to the task's own grader."""
    from foretell.tasks import TASKS  # noqa: PLC0415

    return TASKS.get(task, TASKS["word"]).check(problem, done.text)


def _print_table(console: Console, races: list[tuple[Race, Problem]]) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    _, *early = RECIPES
    steps, faster = (f"steps:\n{name}" for name in RECIPES), (f"faster:\n{name}" for name in early)
    for title in ("", *steps, *faster, "same\nanswer", "right\nanswer"):
        table.add_column(title, no_wrap=True, justify="left" if not title else "right")
    for race, problem in races:
        full, *others = race.films
        ratios = (f"{full.seconds / film.seconds:.1f}x" for film in others)
        answers = {_answer(film.done) for film in race.films}
        right = [film.title for film in race.films if _is_right(race.title, problem, film.done)]
        shown = {len(RECIPES): "all", 0: "none"}.get(len(right), "\n".join(right))
        counts = (str(film.done.steps) for film in race.films)
        table.add_row(Text(race.title, style="bold"), *counts, *ratios, "yes" if len(answers) == 1 else "no", shown)
    console.print(table)


def _answer(done: Completion) -> str:
    return done.text if done.answer is None else done.answer


def _print_next_steps(console: Console) -> None:
    from rich.text import Text  # noqa: PLC0415

    lines = [
        "",
        "faster: the time of full divided by the time of the recipe, on this machine.",
        "Accuracy on 500 problems per task: docs/results/methods.md",
        "",
        f"Watch one:   foretell generate {MODEL} --recipe swift --watch \\",
        f'               "{SHORT}"',
        f"Ask it:      foretell chat {MODEL}",
        "Recipes:     foretell recipes",
    ]
    for line in lines:
        console.print(Text(line, style="dim"), soft_wrap=True)

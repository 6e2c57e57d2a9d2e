"""`foretell tasks`: list the tasks that can be evaluated, and what each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from foretell.evaluation.catalogue import TaskInfo

HEADINGS = {
    "bundled": "Bundled: generated problems for the bundled model",
    "benchmark": "Benchmarks: read from the folder in FORETELL_DATA or --data",
    "prompts": "Your own prompts and texts",
}


def tasks() -> None:
    """List the tasks that can be evaluated, and what each needs.

    They are the values of --task in `eval`, `sweep`, `study`, `tune`, `calibrate` and `judge`.
    """
    from foretell.cli.console import out  # noqa: PLC0415
    from foretell.evaluation.catalogue import list_tasks  # noqa: PLC0415
    from foretell.extras import is_installed  # noqa: PLC0415

    every, console = list(list_tasks()), out()
    for kind, heading in HEADINGS.items():
        console.print(heading, style="bold")
        console.print(_table([task for task in every if task.kind == kind]), "")
    console.print("Tasks that run code written by the model need --allow-code-execution.")
    there = "it is installed" if is_installed("lab") else "it is missing: pip install 'foretell[lab]'"
    console.print(f"eval, sweep and calibrate need the extra lab (scipy); {there}.", markup=False)


def _table(listed: list[TaskInfo]) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for width in (18, 34, None):
        table.add_column(width=width, no_wrap=True)
    for task in listed:
        table.add_row(Text(task.name, style="cyan"), task.about, _needs(task))
    return table


def _needs(task: TaskInfo) -> str:
    if task.kind == "prompts":
        return "--data FILE" if task.name == "fill" else "--data FILE, --layout"
    code = ", runs code" if task.runs_code else ""
    return f"data {task.data}{code}" if task.data else ""

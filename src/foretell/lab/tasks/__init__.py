"""The tasks that the bundled model speaks, by name."""

from __future__ import annotations

from foretell.lab.tasks.choice import Choice
from foretell.lab.tasks.countdown import Countdown
from foretell.lab.tasks.letters import Letters
from foretell.lab.tasks.problem import Piece, Problem, Task, draw, held_out
from foretell.lab.tasks.sudoku import Sudoku
from foretell.lab.tasks.sums import Sums
from foretell.lab.tasks.word import Word

TASKS: dict[str, Task] = {task.name: task for task in (Word(), Choice(), Sudoku(), Countdown())}
DRILLS: dict[str, Task] = {
    task.name: task for task in (Sums(), Letters())
}  # trained on, but nothing that one would ask for

__all__ = ["DRILLS", "TASKS", "Piece", "Problem", "Task", "draw", "held_out"]

"""The tasks that the bundled model speaks, by name."""

from __future__ import annotations

from foretell.tasks.choice import Choice
from foretell.tasks.countdown import Countdown
from foretell.tasks.letters import Letters
from foretell.tasks.problem import Piece, Problem, Task, draw, held_out
from foretell.tasks.sudoku import Sudoku
from foretell.tasks.sums import Sums
from foretell.tasks.word import Word

TASKS: dict[str, Task] = {task.name: task for task in (Word(), Choice(), Sudoku(), Countdown())}
# Trained on beside the tasks: drills that nobody would ask for, and choices right up to the borders of their ranges.
TRAINED: dict[str, Task] = TASKS | {task.name: task for task in (Choice(clear=0), Sums(), Letters())}

__all__ = ["TASKS", "TRAINED", "Piece", "Problem", "Task", "draw", "held_out"]

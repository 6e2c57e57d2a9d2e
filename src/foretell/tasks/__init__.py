"""The tasks of the bundled model by name: generators of problems with worked answers."""

from __future__ import annotations

from foretell.tasks.choice import Choice
from foretell.tasks.countdown import Countdown
from foretell.tasks.letters import Letters
from foretell.tasks.problem import Piece, Problem, Task, draw, is_held_out
from foretell.tasks.sudoku import Sudoku
from foretell.tasks.sums import Sums
from foretell.tasks.word import Word

TASKS: dict[str, Task] = {task.name: task for task in (Word(), Choice(), Sudoku(), Countdown())}
# Also used in training: drills, and choices whose result may lie next to the border of a range.
TRAINED: dict[str, Task] = TASKS | {task.name: task for task in (Choice(clear=0), Sums(), Letters())}

__all__ = ["TASKS", "TRAINED", "Piece", "Problem", "Task", "draw", "is_held_out"]

"""The recipe of a training run: one TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, RecipeError, unknown
from foretell.lab.masks import Masking
from foretell.lab.tasks import TRAINED, Task
from foretell.lab.tasks.pairs import Pairs


@dataclass(frozen=True, slots=True)
class Phase:
    """A change in the course of a run."""

    start: int
    mix: dict[str, float]
    masking: Masking


@dataclass(frozen=True, slots=True)
class TrainRecipe:
    """Everything that decides the outcome of a run."""

    model: Path  # folder with config.json and tokenizer.json
    out: Path  # folder for checkpoints and the log
    steps: int  # of each process
    mix: dict[str, float]  # share of the steps that each task gets at first
    rows: dict[str, int]  # rows of a batch of each task
    pairs: tuple[Pairs, ...] = ()  # tasks read from files
    later: tuple[Phase, ...] = ()  # other shares or masks from some step on
    seed: int = 0
    processes: int = 2
    average_every: int = 10  # steps between two averagings of the parameters
    pace: tuple[tuple[int, float], ...] = ()  # (step, factor of the learning rate); up, level and down by default
    matrix_rate: float = 0.002  # learning rate of the matrices inside the blocks
    other_rate: float = 0.004  # of everything else
    second_beta: float = 0.95  # of AdamW
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.9  # kept at each averaging
    eos_weight: float = 0.2
    log_every: int = 50
    save_every: int = 500
    test_every: int = 1000
    test_rows: int = 16  # held-out problems of each task for each process
    masking: Masking = field(default_factory=Masking)

    def __post_init__(self) -> None:
        if not self.pace:
            usual = ((0, 0.01), (self.steps // 50, 1.0), (self.steps // 2, 1.0), (self.steps, 0.0))
            object.__setattr__(self, "pace", usual)
        if list(self.pace) != sorted(self.pace, key=lambda point: point[0]):
            raise RecipeError(f"the steps of the pace must rise, got {[step for step, _ in self.pace]}")
        for name in (*self.names, *self.rows):
            if name not in self.tasks:
                raise RecipeError(unknown("task", name, self.tasks))
        for name in self.names:
            if name not in self.rows:
                raise RecipeError(f"task {name!r} has a share of the mix but no number of rows")
        if self.save_every % self.log_every:
            raise RecipeError(f"save_every ({self.save_every}) must be a multiple of log_every ({self.log_every})")

    @property
    def names(self) -> tuple[str, ...]:
        """Every task that is trained at some time."""
        return tuple(dict.fromkeys(name for mix in (self.mix, *(phase.mix for phase in self.later)) for name in mix))

    def phase(self, step: int) -> Phase:
        return next((p for p in reversed(self.later) if p.start <= step), Phase(0, self.mix, self.masking))

    @property
    def tasks(self) -> dict[str, Task]:
        return TRAINED | {task.name: task for task in self.pairs}

    @classmethod
    def read(cls, file: Path) -> TrainRecipe:
        """Paths in the file are relative to it."""
        try:
            return cls._of(tomllib.loads(file.read_text()), file.parent)
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, ForetellError):
                raise
            raise RecipeError(f"{file} is not a training recipe: {error}") from error

    @classmethod
    def _of(cls, values: dict[str, Any], here: Path) -> TrainRecipe:
        known = {each.name for each in fields(cls)}
        for name in values:
            if name not in known:
                raise RecipeError(unknown("setting", name, known))
        for name in ("model", "out"):
            values[name] = (here / values[name]).resolve()
        values["pace"] = tuple((step, factor) for step, factor in values.get("pace", ()))
        masking = values.get("masking", {})
        values["masking"] = Masking(**masking)
        values["later"] = tuple(
            Phase(each["start"], each["mix"], Masking(**masking | each.get("masking", {})))
            for each in values.get("later", ())
        )
        values["pairs"] = tuple(Pairs.read(here / each.pop("file"), **each) for each in values.get("pairs", ()))
        return cls(**values)

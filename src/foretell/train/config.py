"""The recipes of training and of distilling runs: one TOML file each."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from foretell.engine.engine import folder_of
from foretell.errors import ForetellError, RecipeError, one_of, unknown, whole, within
from foretell.tasks import TRAINED, Task
from foretell.tasks.pairs import Pairs
from foretell.train.masks import Masking

DIRECTIONS = ("reverse", "forward")


@dataclass(frozen=True, slots=True)
class Phase:
    """A change in the course of a run."""

    start: int
    mix: dict[str, float]
    masking: Masking


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(ABC):
    """What every run has: its data, its processes, its optimiser, and when it says and saves how far it is."""

    model: Path  # folder with config.json and tokenizer.json
    out: Path  # folder for checkpoints and the log
    steps: int  # of each process
    mix: dict[str, float]  # share of the steps that each task gets at first
    rows: dict[str, int]  # rows of a batch of each task
    pairs: tuple[Pairs, ...] = ()  # tasks read from files
    seed: int = 0
    processes: int = 2
    average_every: int = 10  # steps between two averagings of the parameters
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
        for name in ("processes", "average_every", "log_every", "save_every", "test_every", "test_rows"):
            whole(name, getattr(self, name), 1)
        for name in ("second_beta", "ema"):
            within(name, getattr(self, name), 0.0, 1.0)
        for name in ("weight_decay", "clip", "eos_weight"):
            within(name, getattr(self, name), 0.0)
        if self.save_every % self.log_every:
            raise RecipeError(f"save_every ({self.save_every}) must be a multiple of log_every ({self.log_every})")
        self._check_tasks()

    def _check_tasks(self) -> None:
        if not self.names:
            raise RecipeError("mix must give at least one task a share, got none")
        for name in (*self.names, *self.rows):
            if name not in self.tasks:
                raise RecipeError(unknown("task", name, self.tasks))
        for name in self.names:
            if name not in self.rows:
                raise RecipeError(f"task {name!r} has a share of the mix but no number of rows")
        for name, count in self.rows.items():
            whole(f"the rows of {name!r}", count, 1)

    @property
    def names(self) -> tuple[str, ...]:
        """Every task that is trained at some time."""
        return tuple(self.mix)

    def phase(self, step: int) -> Phase:  # noqa: ARG002  the same all along, unless a kind of run says otherwise
        return Phase(0, self.mix, self.masking)

    @property
    def tasks(self) -> dict[str, Task]:
        return TRAINED | {task.name: task for task in self.pairs}

    @classmethod
    def read(cls, file: Path) -> Self:
        """Paths in the file are relative to it."""
        try:
            values = tomllib.loads(file.read_text())
            known = {each.name for each in fields(cls) if each.init}
            for name in values:
                if name not in known:
                    raise RecipeError(unknown("setting", name, known))
            return cls(**cls.parsed(values, file.parent))
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, ForetellError):
                raise
            raise RecipeError(f"{file} is not a recipe of this kind: {error}") from error

    @classmethod
    @abstractmethod
    def parsed(cls, values: dict[str, Any], here: Path) -> dict[str, Any]:
        """The settings of a file in `here`, as the fields want them."""


def shared(values: dict[str, Any], here: Path) -> dict[str, Any]:
    """Those settings of a file that every kind of run reads alike."""
    return values | {
        "out": (here / values["out"]).resolve(),
        "pace": tuple((at, factor) for at, factor in values.get("pace", ())),
        "masking": Masking(**values.get("masking", {})),
        "pairs": tuple(Pairs.read(here / each.pop("file"), **each) for each in values.get("pairs", ())),
    }


def rising(pace: tuple[tuple[float, float], ...]) -> None:
    """A `RecipeError` unless the points of a pace follow one another."""
    if list(pace) != sorted(pace, key=lambda point: point[0]):
        raise RecipeError(f"the steps of the pace must rise, got {[at for at, _ in pace]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe(RunConfig):
    """Everything that decides the outcome of a training run."""

    later: tuple[Phase, ...] = ()  # other shares or masks from some step on
    pace: tuple[tuple[int, float], ...] = ()  # (step, factor of the learning rate); up, level and down by default
    matrix_rate: float = 0.002  # learning rate of the matrices inside the blocks
    other_rate: float = 0.004  # of everything else

    def __post_init__(self) -> None:
        if not self.pace:
            usual = ((0, 0.01), (self.steps // 50, 1.0), (self.steps // 2, 1.0), (self.steps, 0.0))
            object.__setattr__(self, "pace", usual)
        rising(self.pace)
        RunConfig.__post_init__(self)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for mix in (self.mix, *(phase.mix for phase in self.later)) for name in mix))

    def phase(self, step: int) -> Phase:
        return next((p for p in reversed(self.later) if p.start <= step), Phase(0, self.mix, self.masking))

    @classmethod
    def parsed(cls, values: dict[str, Any], here: Path) -> dict[str, Any]:
        masking = values.get("masking", {})
        later = tuple(
            Phase(each["start"], each["mix"], Masking(**masking | each.get("masking", {})))
            for each in values.get("later", ())
        )
        return shared(values, here) | {"model": (here / values["model"]).resolve(), "later": later}


@dataclass(frozen=True, slots=True)
class Round:
    """One round of distilling: a teacher that decodes a window of N in N / tokens steps, a student in half as many."""

    tokens: float  # that the teacher reveals in a step, on average
    steps: int  # of training

    def __post_init__(self) -> None:
        within("the tokens of a teacher's step", self.tokens, 0.01)
        whole("the steps of a round", self.steps, 1)

    def budget(self, window: int) -> int:
        """The student's steps for a window."""
        return min(window, max(1, round(window / (2 * self.tokens))))


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilRecipe(RunConfig):
    """Everything that decides the outcome of a distilling run."""

    rounds: tuple[Round, ...]
    steps: int = field(init=False)  # of all rounds
    direction: str = "reverse"  # KL(student || teacher), or `forward`: KL(teacher || student)
    rate: float = 3e-4  # learning rate
    pace: tuple[tuple[float, float], ...] = ()  # (share of a round, factor of the rate); level after a start by default
    second_beta: float = 0.999
    weight_decay: float = 0.0
    ema: float = 0.999  # 0.9999 a step
    eos_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.rounds:
            raise RecipeError("rounds must have at least one round, got none")
        object.__setattr__(self, "steps", sum(each.steps for each in self.rounds))
        if not self.pace:
            object.__setattr__(self, "pace", ((0.0, 0.01), (0.02, 1.0), (1.0, 1.0)))
        rising(self.pace)
        for at, _ in self.pace:
            within("the share of a round in the pace", at, 0.0, 1.0)
        one_of("direction", self.direction, DIRECTIONS)
        within("rate", self.rate, 0.0)
        RunConfig.__post_init__(self)
        for each in self.rounds:
            # The running average becomes the next teacher, so it must have seen a round's last weights.
            if each.steps % self.average_every:
                raise RecipeError(
                    f"the steps of a round must be a multiple of average_every ({self.average_every}), got {each.steps}"
                )

    def round_at(self, step: int) -> tuple[int, Round]:
        """The round that `step` belongs to, behind the step it starts at."""
        start = 0
        for each in self.rounds:
            if step < start + each.steps:
                return start, each
            start += each.steps
        return start - self.rounds[-1].steps, self.rounds[-1]

    @classmethod
    def parsed(cls, values: dict[str, Any], here: Path) -> dict[str, Any]:
        """The model may be a bundled one's name too."""
        beside = (here / values["model"]).resolve()
        return shared(values, here) | {
            "model": beside if beside.is_dir() else folder_of(values["model"]),
            "rounds": tuple(Round(tokens, steps) for tokens, steps in values["rounds"]),
        }

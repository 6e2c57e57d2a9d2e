"""The settings of training and distilling runs, each read from a TOML file."""

from __future__ import annotations

import tomllib
from abc import ABC
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_type_hints

import msgspec

from foretell.engine.engine import folder_of
from foretell.errors import ForetellError, RecipeError, one_of, unknown, whole, within
from foretell.storage import convert, is_folder, read_text
from foretell.tasks import TRAINED, Task
from foretell.tasks.pairs import Pairs
from foretell.train.masks import Masking

DIRECTIONS = ("reverse", "forward")


class Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Task shares and masking from step `start` on."""

    start: int
    mix: dict[str, float]
    masking: Masking


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(ABC):
    """The settings that every run has: data, processes, optimiser, and how often to log, save and test."""

    model: Path  # folder with config.json and tokenizer.json
    out: Path  # folder for checkpoints and the log
    steps: int  # per process
    mix: dict[str, float]  # each task's share of the steps at the start
    rows: dict[str, int]  # batch rows per task
    pairs: tuple[Pairs, ...] = ()  # tasks read from files
    seed: int = 0
    processes: int = 2
    average_every: int = 10  # steps between averagings of the parameters
    second_beta: float = 0.95  # AdamW's second beta
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.9  # share of the running average kept at each update
    eos_weight: float = 0.2
    log_every: int = 50
    save_every: int = 500
    test_every: int = 1000
    test_rows: int = 16  # held-out problems per task and process
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
        """The tasks that are trained in any phase."""
        return tuple(self.mix)

    def phase(self, step: int) -> Phase:  # noqa: ARG002  constant, unless a subclass overrides it
        return Phase(0, self.mix, self.masking)

    @property
    def tasks(self) -> dict[str, Task]:
        return TRAINED | {task.name: task for task in self.pairs}

    @classmethod
    def read(cls, file: Path) -> Self:
        """Load a TOML file, whose paths are relative to it. Raises RecipeError if a setting is unknown or wrong."""
        text = read_text(file, "recipe")
        try:
            values = cls.complete(tomllib.loads(text), file.parent)
            hints = get_type_hints(cls) | {"pairs": tuple[PairsFile, ...]}
            known = [(each.name, hints[each.name], *_default_argument(each)) for each in fields(cls) if each.init]
            shape = msgspec.defstruct("Settings", known, kw_only=True)
            given = convert(values, shape, RecipeError, lambda _, path: (file.parent / path).resolve())
            settings = {name: getattr(given, name) for name in values}
            if "pairs" in settings:
                settings["pairs"] = tuple(Pairs.read(**msgspec.structs.asdict(each)) for each in settings["pairs"])
            return cls(**settings)
        except RecursionError as error:
            raise RecipeError(f"{file} is not valid TOML: it is nested too deeply") from error
        except (ForetellError, ValueError) as error:  # ValueError: also invalid TOML
            raise RecipeError(f"{file}: {error}") from error

    @classmethod
    def complete(cls, values: dict[str, Any], here: Path) -> dict[str, Any]:  # noqa: ARG003  for subclasses
        """Return the settings of a file in `here` with inherited values filled in."""
        return values


class PairsFile(msgspec.Struct, forbid_unknown_fields=True):
    """A task that is read from a file."""

    file: Path
    name: str
    window: int
    block: int


def _default_argument(each: Field[Any]) -> tuple[None, ...]:
    return () if each.default is MISSING and each.default_factory is MISSING else (None,)


def check_rising(pace: tuple[tuple[float, float], ...]) -> None:
    """Raise RecipeError unless the points of a pace are in order."""
    if list(pace) != sorted(pace, key=lambda point: point[0]):
        raise RecipeError(f"the steps of the pace must rise, got {[at for at, _ in pace]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe(RunConfig):
    """Every setting of a training run."""

    later: tuple[Phase, ...] = ()  # other shares or masking from a later step
    pace: tuple[tuple[int, float], ...] = ()  # (step, factor of the learning rate); default: up, level, down
    matrix_rate: float = 0.002  # learning rate of the matrices inside the blocks
    other_rate: float = 0.004  # learning rate of all other parameters

    def __post_init__(self) -> None:
        if not self.pace:
            usual = ((0, 0.01), (self.steps // 50, 1.0), (self.steps // 2, 1.0), (self.steps, 0.0))
            object.__setattr__(self, "pace", usual)
        check_rising(self.pace)
        RunConfig.__post_init__(self)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for mix in (self.mix, *(phase.mix for phase in self.later)) for name in mix))

    def phase(self, step: int) -> Phase:
        return next((p for p in reversed(self.later) if p.start <= step), Phase(0, self.mix, self.masking))

    @classmethod
    def complete(cls, values: dict[str, Any], here: Path) -> dict[str, Any]:  # noqa: ARG003
        """Let later phases inherit the masking of the run."""
        masking = values.get("masking", {})
        try:
            later = [each | {"masking": masking | each.get("masking", {})} for each in values.get("later", ())]
        except (TypeError, AttributeError):
            return values  # not a table: the conversion reports the error
        return values | {"later": later}


class Round(msgspec.Struct, frozen=True, array_like=True):
    """One round of distilling: the teacher decodes a window of N in N / tokens steps, the student in half of them."""

    tokens: float  # revealed per teacher step, on average
    steps: int  # training steps

    def __post_init__(self) -> None:
        within("the tokens of a teacher's step", self.tokens, 0.01)
        whole("the steps of a round", self.steps, 1)

    def budget(self, window: int) -> int:
        """Return the student's steps for a window."""
        return min(window, max(1, round(window / (2 * self.tokens))))


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilRecipe(RunConfig):
    """Every setting of a distilling run."""

    rounds: tuple[Round, ...]
    steps: int = field(init=False)  # sum over all rounds
    direction: str = "reverse"  # KL(student || teacher), or `forward`: KL(teacher || student)
    rate: float = 3e-4  # learning rate
    pace: tuple[tuple[float, float], ...] = ()  # (share of a round, factor of the rate); default: warm up, then level
    second_beta: float = 0.999
    weight_decay: float = 0.0
    ema: float = 0.999  # 0.9999 per step
    eos_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.rounds:
            raise RecipeError("rounds must have at least one round, got none")
        object.__setattr__(self, "steps", sum(each.steps for each in self.rounds))
        if not self.pace:
            object.__setattr__(self, "pace", ((0.0, 0.01), (0.02, 1.0), (1.0, 1.0)))
        check_rising(self.pace)
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
        """Return the first step of the round that `step` belongs to, and the round."""
        start = 0
        for each in self.rounds:
            if step < start + each.steps:
                return start, each
            start += each.steps
        return start - self.rounds[-1].steps, self.rounds[-1]

    @classmethod
    def complete(cls, values: dict[str, Any], here: Path) -> dict[str, Any]:
        """Replace the name of a bundled model by its folder."""
        model = values.get("model")
        if not isinstance(model, str) or is_folder(here / model):
            return values
        return values | {"model": str(folder_of(model).resolve())}

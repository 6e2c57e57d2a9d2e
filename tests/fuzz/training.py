"""Training: the TOML file, the folder of a run, and resuming from its checkpoint."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from foretell.train.config import DistilRecipe, TrainRecipe
from foretell.train.log import Log
from foretell.train.train import Training, train
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, mutate_text, mutate_value
from tests.train.conftest import spelled

TRAIN: dict[str, Any] = {
    "model": "model", "out": "out", "steps": 2, "processes": 1, "log_every": 1, "save_every": 1, "test_every": 1000,
    "average_every": 1, "mix": {"choice": 1.0}, "rows": {"choice": 1}, "seed": 3, "ema": 0.9, "clip": 1.0,
    "pace": [[0, 1.0], [2, 0.5]], "masking": {"decoding": 0.5},
}  # fmt: skip
DISTIL = {name: value for name, value in TRAIN.items() if name not in ("steps", "pace")} | {"rounds": [[4, 2]]}


def _write(path: Path, values: dict[str, Any], rng: Random | None = None) -> None:
    text = "\n".join(f"{name} = {spelled(value)}" for name, value in values.items())
    if rng is not None and rng.random() < 0.3:
        text = mutate_text(rng, text)
    path.write_bytes(text.encode("utf8", "surrogatepass"))


@cache
def folder() -> Path:
    made = world.word_model().parent / "training"
    shutil.copytree(world.word_model(), made / "model")
    _write(made / "train.toml", TRAIN)
    with redirect_stdout(io.StringIO()):
        train(TrainRecipe.read(made / "train.toml"))
    return made


def run(rng: Random) -> None:
    with world.scratch() as parent:
        here = parent / "training"
        shutil.copytree(folder(), here)
        if rng.random() < 0.6:
            kind, values = rng.choice(((TrainRecipe, TRAIN), (DistilRecipe, DISTIL)))
            try:
                _write(here / "train.toml", mutate_value(rng, values), rng)
            except (ValueError, AttributeError):  # a number that Python refuses to print, or not a table
                (here / "train.toml").write_text("steps = " + "9" * 5000)
            kind.read(here / "train.toml").phase(1)
            return
        files = sorted(path for path in here.rglob("*") if path.is_file() and "model" not in path.parts)
        damage_file(rng, rng.choice(files))
        recipe = TrainRecipe.read(here / "train.toml")
        Log(recipe, 0, Training.start(recipe, 0).step)

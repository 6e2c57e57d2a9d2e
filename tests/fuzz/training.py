"""Training: the TOML file, the folder of a run, and resuming from its checkpoint."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from random import Random

from foretell.train.config import DistilRecipe, TrainRecipe
from foretell.train.log import Log
from foretell.train.train import Training, train
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, mutate_text, odd_value

TRAIN = {
    "model": "model", "out": "out", "steps": 2, "processes": 1, "log_every": 1, "save_every": 1, "test_every": 1000,
    "average_every": 1, "mix": {"choice": 1.0}, "rows": {"choice": 1}, "seed": 3, "ema": 0.9, "pace": [[0, 1.0], [2, 0.5]],
    "masking": {"decoding": 0.5},
}  # fmt: skip
DISTIL = TRAIN | {"rounds": [[4, 2]], "pace": [[0.0, 1.0], [1.0, 1.0]]}
del DISTIL["steps"]


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


def _write(file: Path, values: dict[str, object]) -> None:
    text = "\n".join(f"{name} = {_toml(value)}" for name, value in values.items())
    file.write_bytes(text.encode("utf8", "surrogatepass"))


@cache
def _folder() -> Path:
    folder = world.word_model().parent / "training"
    shutil.copytree(world.word_model(), folder / "model")
    _write(folder / "train.toml", TRAIN)
    train(TrainRecipe.read(folder / "train.toml"))
    return folder


def run(rng: Random) -> None:
    with world.scratch() as parent:
        folder = parent / "training"
        shutil.copytree(_folder(), folder)
        if rng.random() < 0.6:
            _read_settings(rng, folder)
            return
        path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file() and "model" not in path.parts))
        damage_file(rng, path)
        recipe = TrainRecipe.read(folder / "train.toml")
        resumed = Training.start(recipe, 0)
        Log(recipe, 0, resumed.step)


def _read_settings(rng: Random, folder: Path) -> None:
    kind, values = rng.choice(((TrainRecipe, TRAIN), (DistilRecipe, DISTIL)))
    changed = {**values, rng.choice(list(values)): None}
    for name in list(changed):
        if changed[name] is None or rng.random() < 0.05:
            changed[name] = odd_value(rng)
    try:
        text = "\n".join(f"{name} = {_toml(value)}" for name, value in changed.items() if value is not None)
    except ValueError:  # a number that Python refuses to print
        text = "steps = " + "1" * 5000
    text = mutate_text(rng, text) if rng.random() < 0.3 else text
    (folder / "train.toml").write_bytes(text.encode("utf8", "surrogatepass"))
    recipe: TrainRecipe | DistilRecipe = kind.read(folder / "train.toml")
    recipe.phase(1)

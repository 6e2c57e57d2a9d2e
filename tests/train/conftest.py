"""A small network's folder, and recipes that train or distil it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import foretell
from foretell.train.config import DistilRecipe, TrainRecipe

TINY = Path(foretell.__file__).parent / "checkpoints" / "tiny"
SMALL = {"d_model": 48, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 96}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tokenizer and config of the bundled model, but small."""
    made = tmp_path / "small"
    made.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(TINY / name, made)
    config = json.loads((TINY / "config.json").read_text()) | SMALL
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.fixture
def write(tmp_path: Path, folder: Path) -> Callable[..., Path]:
    """Writes a recipe file; keywords are its settings."""

    def written(**settings: object) -> Path:
        values = {
            "model": folder.name, "out": "out", "steps": 24, "processes": 1, "log_every": 4,
            "save_every": 8, "test_every": 1000, "average_every": 4, "mix": {"sudoku": 0.5, "countdown": 0.5},
            "rows": {"sudoku": 4, "countdown": 4},
        } | settings  # fmt: skip
        file = tmp_path / f"{values['out']}.toml"
        file.write_text("\n".join(f"{name} = {spelled(value)}" for name, value in values.items()))
        return file

    return written


def spelled(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {spelled(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spelled, value)) + "]"
    return json.dumps(value)


@pytest.fixture
def recipe(write: Callable[..., Path]) -> Callable[..., TrainRecipe]:
    return lambda **settings: TrainRecipe.read(write(**settings))


@pytest.fixture
def distil_file(tmp_path: Path, checkpoint: Path) -> Callable[..., Path]:
    """Writes a recipe file for distilling; keywords are its settings."""

    def written(**settings: object) -> Path:
        values = {
            "model": str(checkpoint), "out": "out", "rounds": [[4, 8]], "processes": 1, "average_every": 4,
            "log_every": 4, "save_every": 4, "test_every": 1000, "mix": {"sudoku": 0.5, "countdown": 0.5},
            "rows": {"sudoku": 4, "countdown": 4},
        } | settings  # fmt: skip
        file = tmp_path / f"{values['out']}.toml"
        file.write_text("\n".join(f"{name} = {spelled(value)}" for name, value in values.items()))
        return file

    return written


@pytest.fixture
def distil_recipe(distil_file: Callable[..., Path]) -> Callable[..., DistilRecipe]:
    return lambda **settings: DistilRecipe.read(distil_file(**settings))

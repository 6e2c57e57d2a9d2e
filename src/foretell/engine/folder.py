"""Checkpoint folders: bundled ones by their name, and the windows that a folder says its model was trained for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from foretell.engine.options import Options
from foretell.errors import ModelError, unknown

BUNDLED = Path(__file__).parents[1] / "checkpoints"
NOT_THE_MODELS = {
    "recipe",
    "layout",
    "pins",
    "chat",
    "seed",
    "stop",
    "stop_strings",
    "threshold",
    "entropy_bound",
}  # options that a request chooses


def folder_of(model: str | Path) -> Path:
    """The folder of a checkpoint, given as a path or as the name of a bundled model."""
    folder = Path(model)
    if folder.exists():
        return folder
    bundled = [path.parent.name for path in BUNDLED.glob("*/model.safetensors")]
    if str(model) in bundled:
        return BUNDLED / str(model)
    raise ModelError(f"there is no folder {str(model)!r}; {unknown('bundled model', str(model), bundled)}")


def layouts_of(folder: Path) -> Mapping[str, Any]:
    """The folder's foretell.json: windows, suffixes and answer regions that the model was trained for."""
    path = folder / "foretell.json"
    if not path.exists():
        return {}
    try:
        described: Mapping[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    known = {field.name for field in fields(Options)} - NOT_THE_MODELS
    for name, layout in described.get("layouts", {}).items():
        for key in layout:
            if key not in known:
                raise ModelError(f"{path}, layout {name!r}: {unknown('key', key, known)}")
    return described

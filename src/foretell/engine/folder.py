"""Checkpoint folders: finding bundled models by name, and reading the layouts that a folder describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from foretell.engine.options import GenerateOptions
from foretell.errors import ModelError, StorageError, unknown
from foretell.models.load import BUNDLED
from foretell.storage import convert, load_json

NOT_THE_MODELS = {
    "recipe",
    "layout",
    "pins",
    "chat",
    "seed",
    "stop",
    "on_mismatch",
    "stop_strings",
    "threshold",
    "entropy_bound",
}  # options that only a request may set


def folder_of(model: str | Path) -> Path:
    """Return the folder of a checkpoint, given as a path or as the name of a bundled model."""
    folder = Path(model)
    if folder.exists():
        return folder
    bundled = [path.parent.name for path in BUNDLED.glob("*/model.safetensors")]
    if str(model) in bundled:
        return BUNDLED / str(model)
    raise ModelError(f"there is no folder {str(model)!r}; {unknown('bundled model', str(model), bundled)}")


class LayoutsFile(msgspec.Struct, forbid_unknown_fields=True):
    """The shape of foretell.json."""

    default: str | None = None
    layouts: dict[str, dict[str, Any]] = {}


def layouts_of(folder: Path) -> Mapping[str, Any]:
    """Load the folder's foretell.json: the windows, suffixes and answer regions that the model was trained for.

    Raises ModelError if a key or a value is not allowed in a layout.
    """
    path = folder / "foretell.json"
    if not path.exists():
        return {}
    hints = get_type_hints(GenerateOptions)
    known = [(name, hint, None) for name, hint in hints.items() if name not in NOT_THE_MODELS]
    options = msgspec.defstruct("LayoutOptions", known)
    described: Mapping[str, Any] = load_json(path, "layouts", ModelError)
    where = str(path)
    try:
        for name, layout in convert(described, LayoutsFile).layouts.items():
            where = f"{path}, layout {name!r}"
            convert(layout, options)
    except StorageError as error:
        raise ModelError(f"{where}: {error}") from error
    return described

"""Checkpoint folders: finding bundled models by name, and reading the layouts that a folder describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from tokenizers import Tokenizer
from tokenizers.models import BPE

from foretell.engine.codec import Codec
from foretell.engine.options import ANSWER, GenerateOptions, Options, make_template
from foretell.errors import ModelError, RequestError, StorageError, one_of, show, unknown
from foretell.models.load import BUNDLED
from foretell.storage import convert, load_json

NOT_THE_MODELS = {
    "recipe",
    "layout",
    "pins",
    "chat",
    "special_tokens",
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
    without_text = Codec(folder, Tokenizer(BPE()), vocab_size=0, mask_id=None, end_ids=())
    try:
        file = convert(described, LayoutsFile)
        if file.default is not None:
            one_of("layout", file.default, file.layouts)
        for name, layout in file.layouts.items():
            where = f"{path}, layout {show(name)}"
            convert(layout, options)
            wordless = {"answer_length": ANSWER} | layout | {"suffix": None} if layout.get("suffix") else layout
            make_template(Options.of(wordless), without_text, {})  # checks numbers and names
    except (StorageError, RequestError) as error:
        raise ModelError(f"{where}: {error}") from error
    return described

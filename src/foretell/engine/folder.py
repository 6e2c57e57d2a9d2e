"""Checkpoint folders: finding them by path, bundled name or hub id, and reading the layouts that a folder describes."""

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
from foretell.models.hub import download, is_hub_id
from foretell.models.load import BUNDLED
from foretell.storage import convert, load_json

NOT_THE_MODELS = {
    "recipe",
    "settings",
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


def folder_of(model: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a checkpoint: a path, the name of a bundled model, or a hub id, which is downloaded.

    A hub id is `owner/name` or `owner/name@revision`. A folder with this path has priority.
    """
    name, bundled = str(model), [path.parent.name for path in BUNDLED.glob("*/model.safetensors")]
    local = Path(model) if Path(model).exists() else BUNDLED / name if name in bundled else None
    if local is None and isinstance(model, str) and is_hub_id(name):
        return download(name, revision)
    if local is None:
        raise ModelError(
            f"there is no folder {name!r}; {unknown('bundled model', name, bundled)}; a model on the Hugging Face hub "
            f"is owner/name"
        )
    if revision is not None:
        raise RequestError(f"a revision is for models on the hub; {name} is a folder on this machine")
    return local


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

"""The manifest of a results folder: which model, recipes, task, seed and versions its results come from."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from foretell.errors import RequestError, StorageError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.records import parts
from foretell.storage import convert, is_file, load_json, write_file
from foretell.version import __version__

FILE = "manifest.json"
PACKAGES = ("numpy", "tokenizers", "torch")
FREE = ("workers", "model")  # may differ between runs of one folder, since neither changes a result
STATED = ("dtype",)  # null in folders of older versions, which did not state what was the default
SIZE = ("limit", "examples", "examples_sha256")  # may differ if examples are added

Extends = Callable[[Mapping[str, Any]], bool]  # whether the wanted evaluation equals or extends a stored one


class RecipeEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The definition of a recipe in a manifest."""

    recipe: str
    options: dict[str, Any]


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The types of a manifest's values."""

    model: str
    model_sha256: str
    task: str
    recipes: dict[str, RecipeEntry]
    order: list[str]
    seed: int
    limit: int | None
    examples: int
    examples_sha256: str
    batch_size: int
    trace: bool
    device: str
    dtype: str | None
    workers: int
    versions: dict[str, str]
    compile: bool | None = None
    strict: bool | None = None
    independent: bool | None = None
    quantize: str | None = None


def examples_hash(examples: Sequence[Example]) -> str:
    """Return a sha256 over the ids, prompts, answers and options, so that a changed data file is noticed."""
    asked = ([one.id, one.prompt, one.gold, one.options] for one in examples)
    return hashlib.sha256("\n".join(json.dumps(one, default=str) for one in asked).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of everything that can change a result."""
    return {
        "python": platform.python_version(),
        "foretell": __version__,
        **{name: version(name) for name in PACKAGES},
    }


def read_manifest(folder: Path | str) -> dict[str, Any]:
    """Load the manifest of a folder. Raises StorageError if it is missing or damaged."""
    path = Path(folder) / FILE
    if not is_file(path):
        raise StorageError(f"{folder} holds no evaluation: there is no {FILE}")
    found: dict[str, Any] = load_json(path, "manifest")
    try:
        convert(found, Manifest)
    except StorageError as error:
        raise StorageError(f"{path} is not a manifest that foretell {__version__} can read: {error}") from error
    return found


def has_manifest(folder: Path) -> bool:
    """Return whether a folder holds an evaluation. Raises StorageError if it has results but no manifest."""
    if not is_file(folder / FILE) and any(path.stat().st_size for path in parts(folder)):
        raise StorageError(
            f"{folder} has results but no {FILE}, so nothing says which model and recipes they come from; use another "
            "folder, or delete its results-*.jsonl"
        )
    return is_file(folder / FILE)


def settle(folder: Path, wanted: Mapping[str, Any], extends: Extends) -> None:
    """Write the manifest of a new or growing folder. Raises RequestError if the folder holds another evaluation."""
    if not settled(folder, wanted, extends):
        write_file(folder / FILE, json.dumps(wanted, indent=2, ensure_ascii=False) + "\n")


def settled(folder: Path, wanted: Mapping[str, Any], extends: Extends) -> bool:
    """Return whether the folder has this manifest. Raises RequestError if this does not extend its manifest."""
    if not has_manifest(folder):
        return False
    found = read_manifest(folder)
    differs = list(differences(found, wanted))
    if not differs or extends(found):
        return not differs
    larger = ", of more examples" if resized(found, wanted) and found["examples"] > wanted["examples"] else ""
    listed = "".join(f"\n  {one}" for one in differs)
    raise RequestError(
        f"{folder} holds another evaluation{larger}; use another folder, or run the same evaluation again. "
        f"What differs:{listed}"
    )


def resized(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether nothing differs except the number and the choice of examples."""
    return not list(differences(found, {**wanted, **{name: found.get(name) for name in SIZE}}))


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any], at: str = "") -> Iterable[str]:
    """Yield one line per value that differs."""
    for name in dict.fromkeys((*found, *wanted)):
        there, here = found.get(name), wanted.get(name)
        if there == here or (not at and (name in FREE or (name in STATED and there is None))):
            continue
        if isinstance(there, dict) and isinstance(here, dict):
            yield from differences(there, here, f"{at}{name}.")
        else:
            yield f"{at}{name}: {_format_value(there)} before, {_format_value(here)} now"


def _format_value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:157] + "..."

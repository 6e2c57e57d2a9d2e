"""What a folder of results is the result of: model, recipes, task, seed, versions; and whether that is still so."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foretell.engine.trace_files import replacing
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example

FILE = "manifest.json"
PACKAGES = ("foretell", "numpy", "tokenizers", "torch")
FREE = ("workers", "model")  # may differ between two runs of one folder: neither changes a result
SIZE = ("limit", "examples", "examples_sha256")  # may differ where a folder grows

Extends = Callable[[Mapping[str, Any]], bool]  # whether what is wanted is a manifest's evaluation, or goes on from it


def examples_hash(examples: Sequence[Example]) -> str:
    """sha256 over what is asked, so that a data file that has changed is noticed."""
    asked = ([one.id, one.prompt, one.gold, one.options] for one in examples)
    return hashlib.sha256("\n".join(json.dumps(one, default=str) for one in asked).encode()).hexdigest()


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def read_manifest(folder: Path | str) -> dict[str, Any]:
    path = Path(folder) / FILE
    if not path.exists():
        raise RequestError(f"{folder} holds no evaluation: there is no {FILE}")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except json.JSONDecodeError as error:
        raise RequestError(f"{path} is not valid JSON: {error}") from error
    return found


def settle(folder: Path, wanted: Mapping[str, Any], extends: Extends) -> None:
    """Write the manifest of a folder that is new or grows; an error where it holds another evaluation."""
    if not settled(folder, wanted, extends):
        with replacing(folder / FILE) as file:
            file.write((json.dumps(wanted, indent=2, ensure_ascii=False) + "\n").encode())


def settled(folder: Path, wanted: Mapping[str, Any], extends: Extends) -> bool:
    """Whether the folder has this manifest already; an error where it has another that this one does not extend."""
    if not (folder / FILE).exists():
        return False
    found = read_manifest(folder)
    differs = list(differences(found, wanted))
    if not differs or extends(found):
        return not differs
    larger = ", of more examples" if resized(found, wanted) and found["examples"] > wanted["examples"] else ""
    listed = "".join(f"\n  {one}" for one in differs)
    raise RequestError(
        f"{folder} holds another evaluation{larger}; give another folder, or ask for the same again. "
        f"What differs:{listed}"
    )


def resized(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether nothing differs but how many examples there are, and so which."""
    return not list(differences(found, {**wanted, **{name: found.get(name) for name in SIZE}}))


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any], at: str = "") -> Iterable[str]:
    """One line for each value that is not the same."""
    for name in dict.fromkeys((*found, *wanted)):
        there, here = found.get(name), wanted.get(name)
        if there == here or (not at and name in FREE):
            continue
        if isinstance(there, dict) and isinstance(here, dict):
            yield from differences(there, here, f"{at}{name}.")
        else:
            yield f"{at}{name}: {_shown(there)} there, {_shown(here)} now"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:157] + "..."

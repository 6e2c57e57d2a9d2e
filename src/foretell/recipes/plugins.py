"""Policies and presets of others: modules that register theirs when they are imported.

Installed packages name such a module in the entry point group `foretell.policies`; `FORETELL_IMPORT` names more, by
module or by file, with commas between. Every process of a run reads it, so that workers know them too.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

GROUP, VARIABLE = "foretell.policies", "FORETELL_IMPORT"


def load_plugins() -> None:
    """Import them all; one that cannot be is a warning, and what it would have registered stays unknown."""
    named = {f"{VARIABLE}={name}": name for name in os.environ.get(VARIABLE, "").split(",") if name}
    named |= {f"the entry point {one.name}": one.value for one in entry_points(group=GROUP)}
    for who, name in named.items():
        try:
            _import(name)
        except Exception as error:  # noqa: BLE001  whatever someone else's module does
            warnings.warn(f"{who} cannot be imported: {type(error).__name__}: {error}", stacklevel=2)


def _import(name: str) -> None:
    if not name.endswith(".py"):
        import_module(name)
        return
    path = Path(name)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up, and so does pickle
    spec.loader.exec_module(module)

"""Plugins: modules that register their own policies and presets when they are imported.

Installed packages name such a module in the entry point group `foretell.policies`; `FORETELL_IMPORT` names more, as
modules or files separated by commas, and so does the option --import, which adds to it. Every process of a run reads
this variable, so that workers know the policies too.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from foretell.errors import RequestError

GROUP, VARIABLE = "foretell.policies", "FORETELL_IMPORT"


def load_plugins() -> None:
    """Import all plugins. A plugin that fails causes a warning, and its policies stay unknown."""
    named = {f"{VARIABLE}={name}": name for name in os.environ.get(VARIABLE, "").split(",") if name}
    named |= {f"the entry point {one.name}": one.value for one in entry_points(group=GROUP)}
    for who, name in named.items():
        try:
            _import(name)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            warnings.warn(f"{who} cannot be imported: {type(error).__name__}: {error}", stacklevel=2)


def add_plugins(names: Sequence[str]) -> None:
    """Import files and modules in this process, and in those that it starts. Raises RequestError if one fails."""
    known = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    for name in names:
        absolute = str(Path(name).absolute()) if name.endswith(".py") else name
        if {name, absolute} & set(known):
            continue
        if "," in absolute or not name:
            raise RequestError(f"--import {name!r}: the name of a file or module must not be empty or contain a comma")
        if name.endswith(".py") and not Path(name).is_file():
            raise RequestError(f"--import {name}: there is no such file")
        try:
            _import(absolute)
        except Exception as error:
            raise RequestError(f"--import {name} cannot be imported: {type(error).__name__}: {error}") from error
        known.append(absolute)
        os.environ[VARIABLE] = ",".join(known)


def _import(name: str) -> None:
    if not name.endswith(".py"):
        import_module(name)
        return
    path = Path(name)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look the module up here
    spec.loader.exec_module(module)

"""More than one machine, over Ray: a server of many replicas, and batches over a pool of engines.

A module is loaded when one of its names is first used, so that batches need no server and pure parts need no Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretell.scale.batches import Generate
    from foretell.scale.front import Patience
    from foretell.scale.pool import Pool
    from foretell.scale.serve import build, serve_app

__all__ = ["Generate", "Patience", "Pool", "build", "serve_app"]
_MODULES = {
    "Generate": "batches",
    "Patience": "front",
    "Pool": "pool",
    "build": "serve",
    "serve_app": "serve",
}  # name -> its module


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

"""More than one machine, over Ray: a server of many replicas, and batches over a pool of engines.

A module is loaded when one of its names is first used, so that batches need no server and pure parts need no Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretell.scale.batches import Generate
    from foretell.scale.pool import Pool

__all__ = ["Generate", "Pool"]
_MODULES = {"Generate": "batches", "Pool": "pool"}  # name -> its module


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

"""Sweeps: the recipes for every combination of some parameters' values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from foretell.errors import RequestError


def expand_sweep(bases: Sequence[str], vary: Sequence[str]) -> tuple[str, ...]:
    """Return each base recipe, then its combinations: `expand_sweep(["full"], ["steps=8,16", "score=margin"])`."""
    axes = [_parse_axis(text) for text in vary]
    names = [axis[0].partition("=")[0] for axis in axes]
    if len(set(names)) < len(names):
        raise RequestError(f"each parameter can be varied once, got {', '.join(names)}")
    cells = [" ".join(cell) for cell in product(*axes)] if axes else []
    return tuple(dict.fromkeys(text for base in bases for text in (base, *(f"{base} {cell}" for cell in cells))))


def _parse_axis(text: str) -> list[str]:
    """Return the settings in "steps=16,32": "steps=16" and "steps=32"."""
    path, equals, values = text.partition("=")
    settings = [f"{path.strip()}={value.strip()}" for value in _split(values)]
    if not equals or not path.strip() or any(setting.endswith("=") for setting in settings):
        raise RequestError(f"cannot read --vary {text!r}; write path=value,value, e.g. steps=16,32,64")
    return settings


def _split(values: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    found, depth = [""], 0
    for letter in values:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found

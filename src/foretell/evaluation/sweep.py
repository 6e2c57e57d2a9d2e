"""Sweeps: every combination of some parameters' values, as the recipes of one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from foretell.errors import RequestError


def crossed(bases: Sequence[str], vary: Sequence[str]) -> tuple[str, ...]:
    """Each base recipe as it is, then with every combination: `crossed(["full"], ["steps=8,16", "score=margin"])`."""
    axes = [_axis(text) for text in vary]
    names = [axis[0].partition("=")[0] for axis in axes]
    if len(set(names)) < len(names):
        raise RequestError(f"each parameter can be varied once, got {', '.join(names)}")
    cells = [" ".join(cell) for cell in product(*axes)] if axes else []
    return tuple(dict.fromkeys(text for base in bases for text in (base, *(f"{base} {cell}" for cell in cells))))


def _axis(text: str) -> list[str]:
    """The settings that "steps=16,32" stands for: "steps=16" and "steps=32"."""
    path, equals, values = text.partition("=")
    settings = [f"{path.strip()}={value.strip()}" for value in _split(values)]
    if not equals or not path.strip() or any(setting.endswith("=") for setting in settings):
        raise RequestError(f"cannot read --vary {text!r}; write path=value,value, e.g. steps=16,32,64")
    return settings


def _split(values: str) -> list[str]:
    """Parts between commas that no bracket encloses."""
    found, depth = [""], 0
    for letter in values:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found

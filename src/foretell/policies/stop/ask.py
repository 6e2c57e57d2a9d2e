"""Asking a stopping rule, which may be someone's own: what it returns is looked at before anyone relies on it."""

from __future__ import annotations

import torch

from foretell.errors import RecipeError
from foretell.protocols import Beliefs, Stop, Verdict
from foretell.state import DecodeState

WANTED = "a stopping rule returns a Verdict whose `settled` is a bool tensor [B], one value for each of the B rows"
SHOWN = "it must be a tensor [B], one value for each of the B rows, or None"


def ask(stop: Stop, beliefs: Beliefs, state: DecodeState) -> Verdict:
    """What `stop` says; a `RecipeError` unless it is a verdict on every row. Nobody waits for the values."""
    verdict, rows, name = stop(beliefs, state), state.done.shape, type(stop).__name__
    if not isinstance(verdict, Verdict):
        raise RecipeError(f"{name} returned {_described(verdict)}; {WANTED}")
    if not (_is_row(verdict.settled, rows) and verdict.settled.dtype == torch.bool):
        raise RecipeError(f"{name} returned a Verdict whose `settled` is {_described(verdict.settled)}; {WANTED}")
    for part in ("value", "bar"):
        shown = getattr(verdict, part)
        if shown is not None and not _is_row(shown, rows):
            raise RecipeError(f"{name} returned a Verdict whose `{part}` is {_described(shown)}; {SHOWN}")
    return verdict


def _is_row(given: object, rows: torch.Size) -> bool:
    return isinstance(given, torch.Tensor) and given.shape == rows


def _described(given: object) -> str:
    if not isinstance(given, torch.Tensor):
        return f"{given!r:.60}, a {type(given).__name__}"
    return f"a {str(given.dtype).removeprefix('torch.')} tensor of shape {list(given.shape)}"

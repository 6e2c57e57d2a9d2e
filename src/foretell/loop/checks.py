"""Asking policies, which may be plugged in: what they return is checked before the loop relies on it.

Only shapes and dtypes are checked, which the host knows: nobody waits for the values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.errors import RecipeError
from foretell.loop.protocols import Beliefs, LogitBeliefs, Region, Score, Stop, Transfer, Verdict
from foretell.loop.view import StateView


def ask_stop(stop: Stop, beliefs: Beliefs, state: StateView) -> Verdict:
    """Return the verdict of `stop`. Raises RecipeError if it is not a verdict on every row."""
    verdict, rows, name = stop(beliefs, state), (len(state.window),), type(stop).__name__
    wanted = "a stopping rule returns a Verdict whose `settled` is a bool tensor [B], one value per row"
    if not isinstance(verdict, Verdict):
        raise RecipeError(f"{name} returned {_describe(verdict)}; {wanted}")
    if not _is_tensor(verdict.settled, rows, torch.bool):
        raise RecipeError(f"{name} returned a Verdict whose `settled` is {_describe(verdict.settled)}; {wanted}")
    for part in ("value", "bar", "progress"):
        shown = getattr(verdict, part)
        if shown is not None and not _is_tensor(shown, rows):
            raise RecipeError(
                f"{name} returned a Verdict whose `{part}` is {_describe(shown)}; it must be a tensor [B], one value "
                "per row, or None"
            )
    return verdict


def ask_region(region: Region, state: StateView) -> Tensor:
    """Return the answer region. Raises RecipeError if it is not a bool [B, N]."""
    return _checked("region", region, region(state), state, torch.bool)


def ask_score(score: Score, beliefs: LogitBeliefs, state: StateView) -> Tensor:
    """Return the scores. Raises RecipeError if they are not floats [B, N]."""
    scores = score(beliefs, state)
    dtype = scores.dtype if isinstance(scores, Tensor) and scores.is_floating_point() else torch.float32
    return _checked("score", score, scores, state, dtype)


def ask_transfer(transfer: Transfer, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
    """Return the masks to fill. Raises RecipeError if it is not a bool [B, N]."""
    return _checked("transfer", transfer, transfer(scores, beliefs, state), state, torch.bool)


def _checked(kind: str, policy: object, given: object, state: StateView, dtype: torch.dtype) -> Tensor:
    if isinstance(given, Tensor) and _is_tensor(given, tuple(state.window.shape), dtype):
        return given
    values = "bool" if dtype == torch.bool else "float"
    raise RecipeError(
        f"{type(policy).__name__} returned {_describe(given)}; a {kind} returns a {values} tensor [B, N], here "
        f"{list(state.window.shape)}"
    )


def _is_tensor(given: object, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> bool:
    return isinstance(given, Tensor) and tuple(given.shape) == shape and dtype in (None, given.dtype)


def _describe(given: object) -> str:
    if not isinstance(given, Tensor):
        return f"{given!r:.60}, a {type(given).__name__}"
    return f"a {str(given.dtype).removeprefix('torch.')} tensor of shape {list(given.shape)}"

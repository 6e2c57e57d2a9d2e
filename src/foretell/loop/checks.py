"""Ask a policy, which may come from a plugin, and check what it returns before the loop relies on it.

Only shapes and dtypes are checked. The host knows them, so no check waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.errors import RecipeError
from foretell.loop.parts import Plan
from foretell.loop.protocols import (
    Beliefs,
    Cache,
    LogitBeliefs,
    Logits,
    Region,
    Sample,
    Score,
    Stop,
    Transfer,
    Verdict,
    Verify,
)
from foretell.loop.shapes import check_grid, describe, is_tensor
from foretell.loop.view import StateView


def ask_stop(stop: Stop, beliefs: Beliefs, state: StateView) -> Verdict:
    """Return the verdict of `stop`. Raises RecipeError if it is not a verdict on every row."""
    verdict, rows, name = stop(beliefs, state), (len(state.window),), type(stop).__name__
    wanted = "a stopping rule returns a Verdict whose `settled` is a bool tensor [B], one value per row"
    if not isinstance(verdict, Verdict):
        raise RecipeError(f"{name} returned {describe(verdict)}; {wanted}")
    if not is_tensor(verdict.settled, rows, torch.bool):
        raise RecipeError(f"{name} returned a Verdict whose `settled` is {describe(verdict.settled)}; {wanted}")
    for part in ("value", "bar", "progress"):
        shown = getattr(verdict, part)
        if shown is not None and not is_tensor(shown, rows):
            raise RecipeError(
                f"{name} returned a Verdict whose `{part}` is {describe(shown)}; it must be a tensor [B], one value "
                "per row, or None"
            )
    return verdict


def ask_reads(stop: Stop, state: StateView) -> Tensor:
    """Return the positions whose beliefs `stop` reads. Raises RecipeError if they are not a bool [B, N]."""
    return check_grid(stop, "the `reads` of a stopping rule", stop.reads(state), state.window.shape)


def ask_cache(cache: Cache, state: StateView) -> Plan:
    """Return the plan of the next pass. Raises RecipeError if it is not a plan for every row and position."""
    plan, name = cache(state), type(cache).__name__
    if not isinstance(plan, Plan):
        raise RecipeError(f"{name} returned {describe(plan)}; a cache policy returns a Plan")
    shapes = {"full": state.window.shape[:1], "query": state.window.shape, "visible": state.window.shape}
    for part, shape in shapes.items():
        given = getattr(plan, part)
        if given is not None and not is_tensor(given, shape, torch.bool):
            raise RecipeError(
                f"{name} returned a Plan whose `{part}` is {describe(given)}; it must be a bool tensor of shape "
                f"{list(shape)}, or None"
            )
    if (plan.full is None) != (plan.query is None) or (cache.stores and plan.full is None):
        raise RecipeError(
            f"{name} returned a Plan without `{'full' if plan.full is None else 'query'}`; a cache that stores keys "
            "and values gives both `full` and `query`, any other cache both or neither"
        )
    return plan


def ask_sample(sample: Sample, logits: Logits, state: StateView, row: Tensor, position: Tensor) -> Tensor:
    """Return the proposed tokens. Raises RecipeError if they are not integers [n]."""
    tokens = sample(logits, state, row, position)
    if is_tensor(tokens, row.shape) and not (
        tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool
    ):
        return tokens
    raise RecipeError(
        f"{type(sample).__name__} returned {describe(tokens)}; a sampling policy returns integer token ids [n], here "
        f"{list(row.shape)}"
    )


def ask_region(region: Region, state: StateView) -> Tensor:
    """Return the answer region. Raises RecipeError if it is not a bool [B, N]."""
    return check_grid(region, "a region", region(state), state.window.shape)


def ask_score(score: Score, beliefs: LogitBeliefs, state: StateView) -> Tensor:
    """Return the scores. Raises RecipeError if they are not floats [B, N]."""
    scores = score(beliefs, state)
    dtype = scores.dtype if isinstance(scores, Tensor) and scores.is_floating_point() else torch.float32
    return check_grid(score, "a score", scores, state.window.shape, dtype)


def ask_transfer(transfer: Transfer, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
    """Return the masks to fill. Raises RecipeError if they are not a bool [B, N]."""
    return check_grid(transfer, "a transfer", transfer(scores, beliefs, state), state.window.shape)


def ask_verify(verify: Verify, beliefs: Beliefs, state: StateView) -> Tensor:
    """Return the committed positions to mask again. Raises RecipeError if they are not a bool [B, N]."""
    return check_grid(verify, "a verifier", verify(beliefs, state), state.window.shape)

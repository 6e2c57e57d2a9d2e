"""The shape and dtype of what a policy returns. The host knows both, so checking them never waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foretell.errors import RecipeError, show


def is_tensor(given: object, shape: Sequence[int], dtype: torch.dtype | None = None) -> bool:
    """Return whether `given` is a tensor of this shape, and of this dtype if one is named."""
    return isinstance(given, Tensor) and given.shape == tuple(shape) and dtype in (None, given.dtype)


def check_grid(
    policy: object, kind: str, given: object, shape: Sequence[int], dtype: torch.dtype = torch.bool
) -> Tensor:
    """Return `given` if it is a tensor [B, N] of this shape and dtype. Raises a RecipeError that names the policy."""
    if isinstance(given, Tensor) and is_tensor(given, shape, dtype):
        return given
    values = "bool" if dtype == torch.bool else "float"
    raise RecipeError(
        f"{type(policy).__name__} returned {describe(given)}; {kind} returns a {values} tensor [B, N], here "
        f"{list(shape)}"
    )


def describe(given: object) -> str:
    """Return a few words about a value, for messages."""
    if not isinstance(given, Tensor):
        return f"{show(given)}, a {type(given).__name__}"
    return f"a {str(given.dtype).removeprefix('torch.')} tensor of shape {list(given.shape)}"

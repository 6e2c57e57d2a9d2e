"""Reading drafts and answers out of stored traces, for the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretell.loop.spelling import printable

if TYPE_CHECKING:
    from torch import Tensor

    from foretell.engine.trace import Trace
    from foretell.loop.protocols import Region


def has_answer(trace: Trace) -> bool:
    if trace.request.recipe.region.sought:
        return bool(trace.place().any())
    return trace.request.layout.answer is not None


def answer_positions(trace: Trace, step: int = -1, region: Region | None = None) -> Tensor:
    """Return the answer's positions, fixed or as found in the draft of a step, else all that are not pinned. [N]"""
    where = trace.filled_at >= 0
    if (region or trace.request.recipe.region).sought:
        found = trace.answer(region)[step]
        return found if found.any() else where
    if trace.request.layout.answer is not None:
        start, length = trace.request.layout.answer
        where = where.new_zeros(len(where))
        where[start : start + length] = True
    return where


def draft_text(trace: Trace, step: int, where: Tensor | None = None) -> str:
    """Return the draft of a step on one line, without end tokens."""
    tokens = trace.committed(step) if where is None else trace.committed(step)[where]
    text = trace.spelling().text(token for token in tokens.tolist() if token not in trace.end_ids).string
    return " ".join(printable(text).replace("\\n", " ⏎ ").split())

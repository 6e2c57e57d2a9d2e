"""Find the answer in the text of each row's draft: shared by the regions without a fixed place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretell.errors import ForetellError, RowsFailedError
from foretell.loop.spelling import Spelling
from foretell.loop.view import StateView

MASK = "\uffff"  # stands for a mask: a code point that is not a character and occurs in no text
Find = Callable[[str], tuple[int, int] | None]  # a text -> where the answer starts and ends, or None


def locate_answer(state: StateView, find: Find, most: int = 0) -> Tensor:
    """Return the tokens of what `find` finds in each row's text, at most `most` of them (0: all). [B, N]

    The text is what a commit would emit: it ends at the first end token after all pins. An answer that still holds
    a mask does not count, because its end is not known yet. Raises RowsFailedError with the errors of `find`.
    """
    spelling = state.spelling
    assert spelling is not None, "lay_out requires a spelling if the answer is found in the text"
    drafts = state.draft.cpu()
    found = torch.zeros(drafts.shape, dtype=torch.bool)
    last_pin = torch.where(state.pinned, state.positions, -1).amax(dim=1).tolist()
    failed: dict[int, ForetellError] = {}
    for row, ids in enumerate(drafts.numpy()):
        key = find, most, state.mask_id, state.end_ids, last_pin[row], ids.tobytes()
        try:
            tokens = spelling.find_once(key, partial(_find_tokens, ids, last_pin[row], state, find, most))
        except ForetellError as error:
            failed[row] = error
        else:
            found[row, tokens.start : tokens.stop] = True
    if failed:
        raise RowsFailedError(failed)
    return found.to(state.draft.device)


def _find_tokens(ids: NDArray[np.int64], last_pin: int, state: StateView, find: Find, most: int) -> range:
    """Return the tokens of the answer in one row."""
    assert state.spelling is not None, "a text needs a spelling"
    pieces = _pieces(ids.tolist(), last_pin, state.spelling, state)
    text = state.spelling.join(pieces)
    start, end = find(text.string) or (0, 0)
    found = text.string[start:end]
    start, end = end - len(found.lstrip()), start + len(found.rstrip())
    tokens = text.tokens(start, end) if start < end else range(0)
    if most:
        tokens = tokens[:most]
    return range(0) if any(pieces[at] == MASK for at in tokens) else tokens


def _pieces(ids: list[int], last_pin: int, spelling: Spelling, state: StateView) -> list[str]:
    pieces = []
    for at, token in enumerate(ids):
        if token in state.end_ids:
            if at > last_pin:
                break
            pieces.append("")
        else:
            pieces.append(MASK if token == state.mask_id else spelling.piece(token))
    return pieces

"""Looking for the answer in the text of each row's draft: what the regions without a fixed place share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretell.loop.spelling import Spelling
from foretell.loop.view import StateView

MASK = "\uffff"  # stands for a mask: a code point that is no character and that no text holds
Find = Callable[[str], tuple[int, int] | None]  # a text -> the answer's first letter, and the one behind its last


def located(state: StateView, find: Find, most: int = 0) -> Tensor:
    """The tokens of the stretch that `find` names in each row's text, `most` of them at most (0: all). [B, N]

    The text is what a commit would emit: it ends at the first end token behind all pins. A stretch that still holds
    a mask is not there yet, because nobody knows where it ends.
    """
    words = state.spelling
    assert words is not None, "lay_out wants a spelling where the answer is found in the text"
    drafts = state.draft.cpu()
    found = torch.zeros(drafts.shape, dtype=torch.bool)
    last_pin = torch.where(state.pinned, state.positions, -1).amax(dim=1).tolist()
    for row, ids in enumerate(drafts.numpy()):
        key = find, most, state.mask_id, state.end_ids, last_pin[row], ids.tobytes()
        tokens = words.once(key, partial(_looked, ids, last_pin[row], state, find, most))
        found[row, tokens.start : tokens.stop] = True
    return found.to(state.draft.device)


def _looked(ids: NDArray[np.int64], last_pin: int, state: StateView, find: Find, most: int) -> range:
    """The tokens of the answer in one row."""
    assert state.spelling is not None, "a text needs words"
    pieces = _pieces(ids.tolist(), last_pin, state.spelling, state)
    text = state.spelling.join(pieces)
    start, end = find(text.string) or (0, 0)
    stretch = text.string[start:end]
    start, end = end - len(stretch.lstrip()), start + len(stretch.rstrip())
    tokens = text.tokens(start, end) if start < end else range(0)
    if most:
        tokens = tokens[:most]
    return range(0) if any(pieces[at] == MASK for at in tokens) else tokens


def _pieces(ids: list[int], last_pin: int, words: Spelling, state: StateView) -> list[str]:
    pieces = []
    for at, token in enumerate(ids):
        if token in state.end_ids:
            if at > last_pin:
                break
            pieces.append("")
        else:
            pieces.append(MASK if token == state.mask_id else words.piece(token))
    return pieces

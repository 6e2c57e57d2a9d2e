"""The layout of long chains of thought, GSM8K and GPQA: a suffix late in the window and a short answer behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.errors import RequestError, within
from foretell.evaluation.benchmarks.multiple_choice import SUFFIX

WINDOW, BLOCK = 256, 32
SUFFIX_AT, SUFFIX_TOKENS = 200, 3  # of a window of 256; " The", " answer", " is" in LLaDA's and Dream's vocabularies


def at_the_end(window: int, *, blank: int, answer_length: int) -> Mapping[str, Any]:
    """Options for a window of that length: the suffix at 200 of 256, or at the same share of another window.

    `blank` positions stay free between the suffix and the answer: one where the number's blank is a token of its own,
    none where it belongs to the answer's token.
    """
    start = window * SUFFIX_AT // WINDOW
    within("the window", window, 16, error=RequestError)
    return {
        "max_new_tokens": window,
        "steps": window,
        "block_length": min(BLOCK, window),
        "suffix": "",  # pinned by offset instead, because of the blank
        "pins": {start: SUFFIX},
        "answer_start": start + SUFFIX_TOKENS + blank,
        "answer_length": answer_length,
    }

"""The layout for long chains of thought (GSM8K, GPQA): a suffix late in the window, followed by a short answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.errors import RequestError, within
from foretell.evaluation.benchmarks.multiple_choice import SUFFIX

WINDOW, BLOCK = 256, 32
SUFFIX_AT, SUFFIX_TOKENS = 200, 3  # in a window of 256; " The", " answer", " is" in LLaDA's and Dream's vocabularies


def suffix_layout(window: int, *, blank: int, answer_length: int) -> Mapping[str, Any]:
    """Return options for a window of this length: the suffix starts at 200 of 256, or at the same fraction of it.

    `blank` positions stay free between the suffix and the answer: 1 if the blank before the answer is a separate token,
    0 if it is part of the answer's token.
    """
    start = window * SUFFIX_AT // WINDOW
    within("the window", window, 16, error=RequestError)
    return {
        "max_new_tokens": window,
        "steps": window,
        "block_length": min(BLOCK, window),
        "suffix": "",  # pinned by position instead, because of the blank
        "pins": {start: SUFFIX},
        "answer_start": start + SUFFIX_TOKENS + blank,
        "answer_length": answer_length,
    }

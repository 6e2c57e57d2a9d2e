"""What a prompt may be: text, chat messages or token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor

from foretell.engine.masked_text import MaskedText
from foretell.errors import RequestError, show
from foretell.models.chat import Message

WrittenPrompt = str | Sequence[Message]  # what a file can hold
Prompt = WrittenPrompt | Sequence[int] | Tensor | np.ndarray[Any, Any] | MaskedText
KINDS = "a prompt is a string, a list of messages or a list of token ids"


def is_single(prompt: object) -> bool:
    """Return whether this is one prompt and not a list of them. Raises RequestError if it is neither."""
    if isinstance(prompt, str | Tensor | np.ndarray | MaskedText):
        return True
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise RequestError(f"{KINDS}, got {type(prompt).__name__}")
    return is_ids(prompt) or (len(prompt) > 0 and all(isinstance(item, Mapping) for item in prompt))


def is_ids(prompt: object) -> bool:
    """Return whether a prompt is given as token ids."""
    if isinstance(prompt, Tensor | np.ndarray):
        return True
    return isinstance(prompt, Sequence) and len(prompt) > 0 and _is_whole(prompt[0])


def read_ids(prompt: Sequence[int] | Tensor | np.ndarray[Any, Any], vocab_size: int) -> list[int]:
    """Return the token ids of a prompt. Raises RequestError unless each is a whole number below `vocab_size`."""
    if isinstance(prompt, Tensor | np.ndarray):
        if prompt.ndim != 1 or len(prompt) == 0:
            raise RequestError(
                f"an array of token ids must have one dimension and at least one id, got the shape "
                f"{tuple(prompt.shape)}; give several prompts as a list, each without padding"
            )
        prompt = prompt.tolist()
    for place, token in enumerate(prompt):
        if not _is_whole(token) or not 0 <= token < vocab_size:
            raise RequestError(
                f"token {show(token)} at {place} of the prompt is outside the vocabulary, whose ids are whole "
                f"numbers from 0 to {vocab_size - 1}"
            )
    return [int(token) for token in prompt]


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)

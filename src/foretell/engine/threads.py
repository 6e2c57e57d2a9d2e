"""Torch's threads while a model decodes: one thread is many times faster for small tensors than several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
_CHANGING = threading.RLock()  # held while the number, which all Python threads share, is not the caller's


@contextmanager
def use_threads(threads: int | None) -> Iterator[None]:
    """Use this many torch threads in this block; None keeps the current number.

    Python threads that need a change of the number take turns; otherwise they run at the same time.
    """
    if threads is not None:
        with _CHANGING:
            before = torch.get_num_threads()
            if before != threads:
                torch.set_num_threads(threads)
                try:
                    yield
                finally:
                    torch.set_num_threads(before)
                return
    yield


def with_threads(items: Iterator[T], threads: int | None) -> Iterator[T]:
    """Yield the `items`, each computed with this many torch threads; the caller's number is restored in between."""
    while True:
        with use_threads(threads):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item

"""Torch's threads while a model decodes: small tensors are many times faster with one than shared out among several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """Use this many torch threads inside; None leaves torch's own choice."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_threads(items: Iterator[T], threads: int | None) -> Iterator[T]:
    """Yield the `items`, each computed with this many torch threads; the caller's own number is restored in between."""
    while True:
        with using(threads):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item

"""Torch's threads while a model decodes: small tensors are many times faster with one than shared out among several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def using(threads: int | None) -> Iterator[None]:
    """So many threads inside; None leaves torch's own choice."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def eased(items: Iterator[T], threads: int | None) -> Iterator[T]:
    """The `items`, each made with so many threads; whoever takes them keeps their own."""
    while True:
        with using(threads):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item

"""Measure the peak memory of the tensors that are created in a `with` block."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live storages that were created inside its block; `most` is the maximum.

    Storages that existed before, and those created while `paused`, do not count. Memory that a kernel allocates and
    frees internally is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what is created in this block."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tree_iter((args, kwargs)):
            self._register(tensor, ours=False)
        made = func(*args, **kwargs)
        for tensor in tree_iter(made):
            self._register(tensor, ours=not self._paused)
        return made

    def _register(self, tensor: Any, *, ours: bool) -> None:
        if not isinstance(tensor, Tensor):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes() if ours else 0
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

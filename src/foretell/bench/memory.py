"""How much memory tensors take: the most that was held at once, by what was made under watch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages made under it, until they are let go; `most` is the highest count.

    Storages that were there before do not count, nor do those made `aside`. What a kernel allocates and frees
    inside of itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()
        self._aside = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is made in here is somebody else's."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tree_iter((args, kwargs)):
            self._note(tensor, ours=False)
        made = func(*args, **kwargs)
        for tensor in tree_iter(made):
            self._note(tensor, ours=not self._aside)
        return made

    def _note(self, tensor: Any, *, ours: bool) -> None:
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

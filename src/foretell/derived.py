"""Properties that are computed once for as long as the fields they are computed from stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class Derived(Generic[T]):
    """A read-only property kept in its owner's dict `kept`, along with the fields that it was made of.

    There is nothing to clear and so nothing to forget: a kept value counts only while every one of its sources is
    the same tensor and has not been written to since. Tensors made in inference mode do not count writes; nothing
    outside of that mode can write to them, and inside of it the loop assigns new ones.
    """

    def __init__(self, compute: Callable[[Any], T], sources: tuple[str, ...]) -> None:
        self.compute, self.sources, self.__doc__ = compute, sources, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        kept: tuple[T, list[tuple[Tensor, int]]] | None = owner.kept.get(self.name)
        if kept is not None:
            for name, (source, writes) in zip(self.sources, kept[1], strict=True):
                if getattr(owner, name) is not source or _writes(source) != writes:
                    break
            else:
                return kept[0]
        made_of = [(source, _writes(source)) for source in (getattr(owner, name) for name in self.sources)]
        value = self.compute(owner)
        owner.kept[self.name] = value, made_of
        return value


def derived(*sources: str) -> Callable[[Callable[[Any], T]], Derived[T]]:
    """A method as a property that is computed anew when one of these tensor fields has changed."""
    return lambda compute: Derived(compute, sources)


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version

"""Properties that are computed once for as long as the fields they are computed from stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Some tensor fields of an owner as they once were: which tensors, and how often written to."""

    fields: tuple[tuple[str, Tensor, int], ...]

    def holds(self, owner: Any) -> bool:
        """Whether every one of them is the same tensor still and has not been written to since.

        Tensors made in inference mode do not count writes; nothing outside of that mode can write to them, and
        inside of it the loop assigns new ones.
        """
        return all(getattr(owner, name) is source and _writes(source) == writes for name, source, writes in self.fields)


def stamp(owner: Any, names: Iterable[str]) -> Stamp:
    return Stamp(tuple((name, source, _writes(source)) for name in names for source in (getattr(owner, name),)))


class Derived(Generic[T]):
    """A read-only property kept in its owner's dict `kept`, along with the fields that it was made of.

    There is nothing to clear and so nothing to forget: a kept value counts only while its stamp holds.
    """

    def __init__(self, compute: Callable[[Any], T], sources: tuple[str, ...]) -> None:
        self.compute, self.sources, self.__doc__ = compute, sources, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        kept: tuple[T, Stamp] | None = owner.kept.get(self.name)
        if kept is not None and kept[1].holds(owner):
            return kept[0]
        made_of = stamp(owner, self.sources)
        value = self.compute(owner)
        owner.kept[self.name] = value, made_of
        return value


def derived(*sources: str) -> Callable[[Callable[[Any], T]], Derived[T]]:
    """A method as a property that is computed anew when one of these tensor fields has changed."""
    return lambda compute: Derived(compute, sources)


def provide(owner: Any, name: str, value: object) -> None:
    """Keep a value of a derived property that someone has worked out already."""
    made: Derived[object] = vars(type(owner))[name]
    owner.kept[name] = value, stamp(owner, made.sources)


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version

"""Every position is visible."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.loop.view import StateView


@dataclass(frozen=True, slots=True)
class Everything:
    def __call__(self, state: StateView) -> None:  # noqa: ARG002
        return None

"""Numbers as people say them: with their noun, and as a ratio that is never below one."""

from __future__ import annotations


def count(number: int, thing: str) -> str:
    """1 prompt, 2 prompts."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def ratio(base: float, taken: float) -> str:
    """How many times fewer of something were taken than the base, or more."""
    return f"{base / taken:.2f}x fewer" if taken <= base else f"{taken / base:.2f}x more"

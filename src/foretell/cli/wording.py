"""Format numbers for people: counts with their noun, and ratios that are never below one."""

from __future__ import annotations


def count(number: int, thing: str) -> str:
    """Return a number with its noun: 1 prompt, 2 prompts."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def ratio(base: float, taken: float) -> str:
    """Return how many times fewer (or more) were taken than the base."""
    return f"{base / taken:.2f}x fewer" if taken <= base else f"{taken / base:.2f}x more"

"""
Our exception hierarchy:

* ForetellError
  x RequestError      the caller asked for something impossible
    + LayoutError     the pinned tokens or the answer do not fit the window
    + RecipeError     unknown policy or parameter name, or a value out of range
    + ContextLengthError  the prompt and its window exceed the model's context
    + VocabularyError the text has a word that the model's vocabulary lacks
    + PermissionNeededError  grading runs code that a model wrote, which was not allowed
    + SandboxError    code that a model wrote cannot be isolated on this machine
  x MissingExtraError an optional package is not installed
  x ModelError        the checkpoint is not one we can run
  x StorageError      a file is missing, damaged, or cannot be written
    + TraceError      the file is not a trace, or was cut short
  x RowsFailedError   some rows of a batch cannot be decoded; the engine turns it into one error per request
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import inf

LARGEST = 2**31 - 1  # the limit of whole numbers that have no natural one: no product of two overflows 64 bits


SHOWN = 80  # characters of a value in a message


class ForetellError(Exception):
    """Base class of all errors that this library raises on purpose."""


class RequestError(ForetellError, ValueError):
    """The request cannot be decoded as asked."""


class LayoutError(RequestError):
    """The pinned tokens or the answer region do not fit the window."""


class RecipeError(RequestError):
    """A policy or parameter name is unknown, or a value is out of range."""


class ContextLengthError(RequestError):
    """The prompt and its window exceed the model's context."""


class VocabularyError(RequestError):
    """The text has a word that the model's vocabulary lacks."""


class PermissionNeededError(RequestError):
    """Grading runs code that a model wrote, and the caller has not allowed it."""

    def __init__(self, how: str) -> None:
        super().__init__(
            "grading this benchmark runs code that a model wrote, on this machine; it runs in a sandbox (see "
            f"docs/evaluation.md), but has to be allowed: {how}"
        )


class SandboxError(RequestError):
    """Code that a model wrote cannot be isolated on this machine as asked."""


class MissingExtraError(ForetellError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""


class ModelError(ForetellError):
    """The checkpoint is not one this library can run."""


class StorageError(ForetellError):
    """A file is missing, damaged, or cannot be written."""


class TraceError(StorageError):
    """The file does not hold traces, or was cut short."""


class RowsFailedError(ForetellError):
    """Some rows of a batch cannot be decoded, each for its own reason. The other rows are not affected."""

    def __init__(self, rows: Mapping[int, ForetellError]) -> None:
        super().__init__("; ".join(f"row {row}: {error}" for row, error in rows.items()))
        self.rows = rows

    @property
    def first(self) -> ForetellError:
        """The error of the first row that failed."""
        return self.rows[min(self.rows)]


def show(value: object, longest: int = SHOWN) -> str:
    """Return a value as a message shows it: not longer than a line, also if Python cannot print it."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  nests too deeply, holds a number of over 4300 digits, or its __repr__ fails
        return "a number of thousands of digits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def unknown(kind: str, name: object, allowed: Iterable[str]) -> str:
    """Return the message for an unknown name: the name, the nearest allowed one, and all allowed ones."""
    names = sorted(allowed)
    near = get_close_matches(name, names, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {show(name)}{hint} (available: {', '.join(names)})"


def one_of(kind: str, value: object, allowed: Iterable[str], error: type[ForetellError] = RecipeError) -> None:
    """Raise `error` unless `value` is one of the `allowed` words."""
    names = tuple(allowed)
    if not isinstance(value, str) or value not in names:
        raise error(unknown(kind, value, names))


def within(kind: str, value: float, low: float, high: float = inf, error: type[ForetellError] = RecipeError) -> None:
    """Raise `error` unless `value` is a number and low <= value <= high; NaN, or an int beyond 64 bits, is an error."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error(f"{kind} must be a number, got {show(value)}")
    if not low <= value <= high:
        span = f"at least {low:.10g}" if high == inf else f"from {low:.10g} to {high:.10g}"
        raise error(f"{kind} must be {span}, got {show(value)}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise error(f"{kind} must be below 2**63 if it is a whole number, got {show(value)}")


def whole(kind: str, value: int, low: int, high: int | None = None, error: type[ForetellError] = RecipeError) -> None:
    """Raise `error` unless `value` is a whole number and low <= value <= high; by default, high is LARGEST."""
    if isinstance(value, float):
        raise error(f"{kind} must be a whole number, got {show(value)}")
    if high is None and isinstance(value, int) and value > LARGEST:
        raise error(f"{kind} must be at most {LARGEST}, got {show(value)}")
    within(kind, value, low, inf if high is None else high, error)

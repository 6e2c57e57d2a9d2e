"""Losses: how far the result of a faster recipe is from full decoding's, as a number from 0 to 1."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from foretell.errors import RequestError, show, unknown
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import LABEL, LABELLED
from foretell.evaluation.records import Record
from foretell.storage import is_file


@dataclass(frozen=True, slots=True)
class Decoded:
    """One result, as a loss sees it."""

    text: str
    answer: str | None  # of the answer region, or what the task extracts from the text
    tokens: tuple[int, ...]  # the generated ones, up to the end of the text
    correct: bool = False  # always false without a reference answer

    @classmethod
    def of_record(cls, record: Record) -> Decoded:
        return cls(record.text, record.answer, record.tokens or (), record.correct)


def describe_example(example: Example) -> dict[str, Any]:
    """Return an example as a loss sees it."""
    data = example.data
    given = data.get(LABELLED, True)
    return {"id": example.id, "prompt": example.prompt, "answer": example.gold if given else None} | {
        LABEL: data.get(LABEL)
    }


Measure = Callable[[Decoded, Decoded, Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True)
class Loss:
    """A function of full decoding's result, the faster one, and the example (`id`, `prompt`, `answer`, `label`)."""

    name: str
    about: str  # completes "the faster recipe ..."
    measure: Measure = field(compare=False)
    graded: bool = False  # values between 0 and 1 occur, so that 0/1 tests are not valid
    labelled: bool = False  # needs reference answers

    def __call__(self, full: Decoded, fast: Decoded, example: Mapping[str, Any]) -> float:
        """Return the loss. Raises RequestError unless it is a number from 0 to 1 (or 0 or 1, if not graded)."""
        value: Any = self.measure(full, fast, example)
        if not isinstance(value, bool | int | float) or not 0 <= value <= 1:  # also refuses NaN
            raise RequestError(f"the loss {self.name} must return a number from 0 to 1, got {show(value)}")
        return float(value)


def _changed_share(full: Decoded, fast: Decoded, _: Mapping[str, Any]) -> float:
    longest = max(len(full.tokens), len(fast.tokens))
    changed: int = sum(one != other for one, other in zip_longest(full.tokens, fast.tokens))
    return changed / max(1, longest)


LOSSES: dict[str, Loss] = {
    one.name: one
    for one in (
        Loss("answer", "gives another answer than full decoding", lambda full, fast, _: full.answer != fast.answer),
        Loss("text", "gives another text than full decoding", lambda full, fast, _: full.text != fast.text),
        Loss("tokens", "changes a generated token of full decoding", _changed_share, graded=True),
        Loss(
            "success",
            "loses a right answer of full decoding",
            lambda full, fast, _: full.correct and not fast.correct,
            labelled=True,
        ),
    )
}
OLD_NAMES = {"consistency": "answer"}  # names of version 0.1.0 that still work


def find_loss(given: str | Measure | Loss) -> Loss:
    """Return a loss by its name, from a function, or from "file.py:function" or "module:function".

    A function's loss counts as graded, because nothing says that it returns only 0 and 1.
    """
    if isinstance(given, Loss):
        return given
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return Loss(name, f"loses by {name}", given, graded=True)
    if not isinstance(given, str):
        raise RequestError(f"a loss is a name, a function or a text such as mine.py:loss, got {show(given)}")
    name = OLD_NAMES.get(given, given)
    if name in LOSSES:
        return LOSSES[name]
    place, colon, function = given.rpartition(":")
    if not colon:
        raise RequestError(f"{unknown('loss', given, LOSSES)}; a function of your own is mine.py:function")
    return Loss(given, f"loses by {given}", _import_function(place, function), graded=True)


def _import_function(place: str, name: str) -> Measure:
    """Import a function from a file (.py) or a module. Whoever names it runs its code."""
    try:
        if place.endswith(".py"):
            if not is_file(Path(place)):
                raise RequestError(f"there is no file {place}")
            found = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert found is not None, "a .py file always has a loader"
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except RequestError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise RequestError(f"cannot import {place}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise RequestError(f"{place} has no function {name!r}")
    measure: Measure = function
    return measure

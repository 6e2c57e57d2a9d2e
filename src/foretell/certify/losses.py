"""Losses: numbers from 0 to 1 that compare the result of a faster recipe with that of full decoding."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import zip_longest
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from foretell.errors import ForetellError, RequestError, show, unknown
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import LABEL, LABELLED
from foretell.evaluation.records import Record
from foretell.storage import is_file


@dataclass(frozen=True, slots=True)
class Decoded:
    """One result, as it is passed to a loss."""

    text: str
    answer: str | None  # of the answer region, or what the task extracts from the text
    tokens: tuple[int, ...] | None  # the generated ones, up to the end of the text; None: not recorded
    correct: bool = False  # always false without a reference answer

    @classmethod
    def of_record(cls, record: Record) -> Decoded:
        return cls(record.text, record.answer, record.tokens, record.correct)


def describe_example(example: Example) -> dict[str, Any]:
    """Return an example as it is passed to a loss."""
    data = example.data
    answer = example.gold if data.get(LABELLED, True) else None
    return {"id": example.id, "prompt": example.prompt, "answer": answer, LABEL: data.get(LABEL)}


Measure = Callable[[Decoded, Decoded, Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True)
class Loss:
    """A function of full decoding's result, the faster one, and the example (`id`, `prompt`, `answer`, `label`)."""

    name: str
    about: str  # completes "the faster recipe ..."
    measure: Measure = field(compare=False)
    graded: bool = False  # values between 0 and 1 occur, so that 0/1 tests are not valid
    labelled: bool = False  # needs reference answers
    digest: str = ""  # of the code of a user's function: another function of the same name is another loss

    def __call__(self, full: Decoded, fast: Decoded, example: Mapping[str, Any]) -> float:
        """Return the loss. Raises RequestError unless it is a number from 0 to 1 (or 0 or 1, if not graded)."""
        try:
            value: Any = self.measure(full, fast, example)
        except ForetellError:
            raise
        except Exception as error:  # whatever the user's function raises
            where = f"the loss {self.name} fails on example {example['id']}"
            raise RequestError(f"{where}: {type(error).__name__}: {error}") from error
        is_number = isinstance(value, Real | np.bool_)
        if not is_number or not 0 <= value <= 1:  # also refuses NaN
            raise RequestError(f"the loss {self.name} must return a number from 0 to 1, got {show(value)}")
        if not self.graded and value not in (0, 1):
            raise RequestError(f"the loss {self.name} is not graded, so it must return 0 or 1, got {show(value)}")
        return float(value)


def _changed_share(full: Decoded, fast: Decoded, _: Mapping[str, Any]) -> float:
    if full.tokens is None or fast.tokens is None:
        raise RequestError("decodings of an older version lack the tokens that this loss compares; use another folder")
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
        return _own_loss(name, given, given)
    if not isinstance(given, str):
        raise RequestError(f"a loss is a name, a function or a text such as mine.py:loss, got {show(given)}")
    name = OLD_NAMES.get(given, given)
    if name in LOSSES:
        return LOSSES[name]
    place, colon, function = given.rpartition(":")
    if not colon:
        raise RequestError(f"{unknown('loss', given, LOSSES)}; a function of your own is mine.py:function")
    module = _import_module(place)
    measure = getattr(module, function, None)
    if not callable(measure):
        raise RequestError(f"{place} has no function {function!r}")
    return _own_loss(given, measure, module)


def _own_loss(name: str, measure: Measure, code: object) -> Loss:
    """Return the loss of a user's function; `code` is what a change of counts as another loss."""
    try:
        source = inspect.getsource(code)  # type: ignore[arg-type]
    except (OSError, TypeError):  # typed at a prompt, or an object: only its name tells it from others
        source = ""
    digest = blake2b(source.encode(), digest_size=8).hexdigest()
    return Loss(name, f"loses by {name}", measure, graded=True, digest=digest)


def _import_module(place: str) -> ModuleType:
    """Import a file (.py) or a module. Whoever names it runs its code."""
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        if not is_file(place):
            raise RequestError(f"there is no file {place}")
        name = str(Path(place).absolute())  # not its stem, which may be the name of another module
        found = importlib.util.spec_from_file_location(name, place)
        assert found is not None, "a .py file always has a loader"
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module  # dataclasses and pickle look their module up
        found.loader.exec_module(module)
    except RequestError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise RequestError(f"cannot import {place}: {type(error).__name__}: {error}") from error
    return module

"""The kinds of questions: yes or no, one of several choices, a score, an integer, a text, a JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from foretell.errors import RequestError, one_of, show, whole

MOST_CHOICES = 255
MOST_DIGITS = 4  # 10,000 labels
LONGEST_TEXT = 256  # tokens
Q = TypeVar("Q", bound="Question")

Value = str | bool
Choices = Mapping[Value, str | None] | Iterable[Value]  # values, perhaps with descriptions


class Question:
    """The base class of all questions."""

    __slots__ = ()

    kind: ClassVar[str]
    depends_on: tuple[str, ...]  # questions whose answers are pinned before this one is asked


@dataclass(frozen=True, slots=True, init=False)
class Predicate(Question):
    """A question that is answered with yes or no."""

    kind: ClassVar[str] = "predicate"

    instructions: str
    depends_on: tuple[str, ...]  # questions whose answers are pinned before this one is asked

    def __init__(self, instructions: str = "", *, depends_on: str | Sequence[str] = ()) -> None:
        object.__setattr__(self, "instructions", _text("instructions", instructions))
        object.__setattr__(self, "depends_on", read_names(depends_on))


@dataclass(frozen=True, slots=True, init=False)
class Choice(Question):
    """A question whose answer is one of several values.

    The values are listed in the prompt after letters, of which the model writes one (`read="letters"`). With "words",
    they are not listed: the model writes the value itself.
    """

    kind: ClassVar[str] = "choice"

    instructions: str
    choices: tuple[Value, ...]
    descriptions: tuple[str | None, ...]
    read: str
    depends_on: tuple[str, ...]

    def __init__(
        self,
        instructions: str,
        choices: Choices,
        *,
        read: Literal["letters", "words"] = "letters",
        depends_on: str | Sequence[str] = (),
    ) -> None:
        values, descriptions = _choices(choices)
        one_of("read", read, ("letters", "words"), RequestError)
        object.__setattr__(self, "instructions", _text("instructions", instructions))
        object.__setattr__(self, "choices", values)
        object.__setattr__(self, "descriptions", descriptions)
        object.__setattr__(self, "read", read)
        object.__setattr__(self, "depends_on", read_names(depends_on))


@dataclass(frozen=True, slots=True, init=False)
class Score(Question):
    """A question whose answer is a level on a scale, from the lowest to the highest."""

    kind: ClassVar[str] = "score"

    instructions: str
    levels: tuple[str, ...]
    depends_on: tuple[str, ...]

    def __init__(self, instructions: str, levels: Iterable[str], *, depends_on: str | Sequence[str] = ()) -> None:
        found = tuple(_text("a level", level) for level in _several("levels", levels))
        object.__setattr__(self, "instructions", _text("instructions", instructions))
        object.__setattr__(self, "levels", found)
        object.__setattr__(self, "depends_on", read_names(depends_on))


@dataclass(frozen=True, slots=True, init=False)
class Integer(Question):
    """A question whose answer is a whole number from 0, with up to `digits` digits."""

    kind: ClassVar[str] = "integer"

    instructions: str
    digits: int
    depends_on: tuple[str, ...]

    def __init__(self, instructions: str = "", digits: int = 2, *, depends_on: str | Sequence[str] = ()) -> None:
        whole("digits", digits, 1, MOST_DIGITS, RequestError)
        object.__setattr__(self, "instructions", _text("instructions", instructions))
        object.__setattr__(self, "digits", digits)
        object.__setattr__(self, "depends_on", read_names(depends_on))


@dataclass(frozen=True, slots=True, init=False)
class Text(Question):
    """A question whose answer is a text of at most `tokens` tokens that matches `regex`; None allows any text."""

    kind: ClassVar[str] = "text"

    instructions: str
    regex: str | None
    tokens: int
    depends_on: tuple[str, ...]

    def __init__(
        self,
        instructions: str = "",
        regex: str | None = None,
        *,
        tokens: int = 16,
        depends_on: str | Sequence[str] = (),
    ) -> None:
        whole("tokens", tokens, 1, LONGEST_TEXT, RequestError)
        if regex is not None and not (isinstance(regex, str) and regex):
            raise RequestError(f"a regex must be a text, got {show(regex)}")
        object.__setattr__(self, "instructions", _text("instructions", instructions))
        object.__setattr__(self, "regex", regex)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "depends_on", read_names(depends_on))


OneSlot = Predicate | Choice | Score | Integer | Text  # questions that are answered in one slot
Questions = Question | Sequence[Question] | Mapping[str, Question]


def name_questions(asked: Any, kinds: tuple[type[Any], ...]) -> dict[str, Any]:
    """Return questions of some kinds by name, from one question, a list or a mapping.

    Those of a list are named q1, q2, ... Raises RequestError if there is none, if one is not a question, or if one
    depends on a name that does not exist.
    """
    if isinstance(asked, kinds):
        named: dict[str, Any] = {"q1": asked}
    elif isinstance(asked, Mapping):
        named = dict(asked)
    elif isinstance(asked, Sequence) and not isinstance(asked, str | bytes):
        named = {f"q{place}": one for place, one in enumerate(asked, 1)}
    else:
        raise RequestError(f"questions are one question, a list or a mapping of names to questions, got {show(asked)}")
    if not named:
        raise RequestError("there is no question")
    for name, one in named.items():
        if not isinstance(name, str) or not name:
            raise RequestError(f"the name of a question must be a text, got {show(name)}")
        if not isinstance(one, kinds):
            raise RequestError(f"{name} is not a question but {show(one)}")
        for other in one.depends_on:
            if other not in named:
                raise RequestError(f"{name} depends on {show(other)}, and there is no question with this name")
    return named


def order_stages(questions: Mapping[str, Q]) -> list[dict[str, Q]]:
    """Return the questions in stages, such that each depends only on earlier stages. Raises RequestError for cycles."""
    left, stages, done = dict(questions), [], set[str]()
    while left:
        ready = {name: one for name, one in left.items() if done.issuperset(one.depends_on)}
        if not ready:
            raise RequestError(f"the questions {', '.join(left)} depend on each other in a circle")
        stages.append(ready)
        done |= ready.keys()
        left = {name: one for name, one in left.items() if name not in ready}
    return stages


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{what} must be a text, got {show(value)}")
    return value


def read_names(value: object) -> tuple[str, ...]:
    """Return the names of the questions that another one depends on."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise RequestError(f"depends_on must be the name of a question or a list of names, got {show(value)}")
    return tuple(names)


def _several(what: str, values: object) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"{what} must be a list, got {show(values)}")
    found = tuple(values)
    whole(f"the number of {what}", len(found), 2, MOST_CHOICES, RequestError)
    texts = [str(one) for one in found]
    for place, one in enumerate(found):
        if texts[place] in texts[:place]:
            raise RequestError(f"{what} must differ, but {show(one)} is given twice")
    return found


def describe_choices(listed: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return choices with their descriptions by value. Raises RequestError if a value is given twice."""
    pairs = list(listed)
    for value, _ in pairs:
        if not isinstance(value, str | bool):
            raise RequestError(f"a choice must be a text, true or false, got {show(value)}")
    _several("choices", [value for value, _ in pairs])
    return dict(pairs)


def _choices(given: object) -> tuple[tuple[Value, ...], tuple[str | None, ...]]:
    described = dict(given) if isinstance(given, Mapping) else dict.fromkeys(_several("choices", given))
    values = _several("choices", described)
    for value, description in described.items():
        if not isinstance(value, str | bool) or value == "":
            raise RequestError(f"a choice must be a text, true or false, got {show(value)}")
        if not isinstance(description, str | None):
            raise RequestError(f"the description of {show(value)} must be a text, got {show(description)}")
    return values, tuple(described.values())

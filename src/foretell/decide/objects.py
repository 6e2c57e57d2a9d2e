"""JSON objects as questions: one slot per field between pinned JSON, also from a closed JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from foretell.decide.questions import (
    LONGEST_TEXT,
    Choice,
    Integer,
    OneSlot,
    Predicate,
    Question,
    Score,
    Text,
    read_names,
)
from foretell.decide.schema import SAFE, Described, read_schema
from foretell.errors import RequestError, show, whole

TOKENS = 16  # of a text, a list or a number


@dataclass(frozen=True, slots=True)
class Leaf:
    """One slot of an object: one of `values`, or a text that matches `regex`.

    `quoted`: the slot is the inside of a JSON string, whose quotes are pinned. Otherwise it is JSON itself.
    """

    kind: ClassVar[str] = "field"

    instructions: str
    values: tuple[Any, ...] = ()
    regex: str | None = None
    quoted: bool = False
    tokens: int = TOKENS
    question: OneSlot | None = None  # that the field was made from, which decides the type of its answer
    depends_on: tuple[str, ...] = ()


Fields = Mapping[str, Any]  # of leaves and nested fields


@dataclass(frozen=True, slots=True, init=False)
class Object(Question):
    """A question whose answer is a JSON object: one question, or another such mapping, per field.

    `from_schema` reads a JSON schema instead. Its shape must be closed: all properties are required, and no others are
    allowed.
    """

    kind: ClassVar[str] = "object"

    fields: Fields
    instructions: str
    depends_on: tuple[str, ...]

    def __init__(
        self, fields: Mapping[str, Any], instructions: str = "", *, depends_on: str | Sequence[str] = ()
    ) -> None:
        object.__setattr__(self, "fields", _leaves(fields, "the object"))
        object.__setattr__(self, "instructions", instructions)
        object.__setattr__(self, "depends_on", read_names(depends_on))

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[str, Any],
        instructions: str = "",
        *,
        tokens: int = TOKENS,
        depends_on: str | Sequence[str] = (),
    ) -> Object:
        """Return the question of a JSON schema. A text, list or number has at most `tokens` tokens.

        Raises RequestError that names the part of the schema that is not supported.
        """
        whole("tokens", tokens, 1, LONGEST_TEXT, RequestError)
        return cls(_with_tokens(read_schema(schema), tokens), instructions, depends_on=depends_on)

    def leaves(self, name: str) -> dict[str, Leaf]:
        """Return the fields without nesting, by their path, such as `person.age`."""
        return dict(_flatten(name, self.fields))

    def assemble(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object with the `values` of its leaves."""
        return _assemble(name, self.fields, values)

    def write(self, name: str) -> Iterator[tuple[str, str | None]]:
        """Yield the pinned JSON before each leaf with the leaf's path, and the JSON after the last one."""
        text = ""
        for part, leaf in _write(name, self.fields):
            text += part
            if leaf is not None:
                yield text, leaf
                text = ""
        yield text, None


def _with_tokens(fields: Mapping[str, Any], tokens: int) -> Fields:
    return {
        name: Leaf(*one, tokens=tokens) if isinstance(one, Described) else _with_tokens(one, tokens)
        for name, one in fields.items()
    }


def _leaves(fields: object, where: str) -> Fields:
    if not isinstance(fields, Mapping) or not fields:
        raise RequestError(f"{where} needs fields, a mapping of names to questions, got {show(fields)}")
    made: dict[str, Any] = {}
    for name, one in fields.items():
        if not isinstance(name, str) or not name:
            raise RequestError(f"{where}: the name of a field must be a text, got {show(name)}")
        if isinstance(one, Object):
            made[name] = one.fields
        elif isinstance(one, Mapping):
            made[name] = _leaves(one, f"{where}.{name}")
        else:
            made[name] = one if isinstance(one, Leaf) else _leaf_of(one, f"{where}.{name}")
    return made


def _leaf_of(question: object, where: str) -> Leaf:
    if isinstance(question, Text):
        regex = f"{SAFE}+" if question.regex is None else question.regex
        return Leaf(question.instructions, regex=regex, quoted=True, tokens=question.tokens, question=question)
    if isinstance(question, Predicate):
        values: Sequence[Any] = (True, False)
    elif isinstance(question, Integer):
        values = range(10**question.digits)
    elif isinstance(question, Choice):
        values = question.choices
    elif isinstance(question, Score):
        values = range(len(question.levels))
    else:
        raise RequestError(f"{where} is not a question but {show(question)}")
    return Leaf(question.instructions, values=tuple(values), question=question)


def _flatten(name: str, fields: Fields) -> Iterator[tuple[str, Leaf]]:
    for key, one in fields.items():
        if isinstance(one, Leaf):
            yield f"{name}.{key}", one
        else:
            yield from _flatten(f"{name}.{key}", one)


def _assemble(name: str, fields: Fields, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: values[f"{name}.{key}"] if isinstance(one, Leaf) else _assemble(f"{name}.{key}", one, values)
        for key, one in fields.items()
    }


def _write(name: str, fields: Fields) -> Iterator[tuple[str, str | None]]:
    for place, (key, one) in enumerate(fields.items()):
        before = f"{', ' if place else '{'}{json.dumps(key, ensure_ascii=False)}: "
        if isinstance(one, Leaf):
            yield before + ('"' if one.quoted else ""), f"{name}.{key}"
            yield '"' if one.quoted else "", None
        else:
            yield before, None
            yield from _write(f"{name}.{key}", one)
    yield "}", None

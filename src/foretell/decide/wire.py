"""Questions as JSON, for files and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.decide.canvas import Asked
from foretell.decide.objects import TOKENS, Object
from foretell.decide.questions import Choice, Integer, Predicate, Score, Text, describe_choices
from foretell.errors import RequestError, one_of, show
from foretell.storage import check_keys

KEYS = {
    "predicate": (),
    "choice": ("choices", "read"),
    "score": ("levels",),
    "integer": ("digits",),
    "text": ("regex", "tokens"),
    "object": ("schema", "tokens"),
}  # besides type, name, instructions and depends_on


def parse_questions(value: Any) -> dict[str, Asked]:
    """Return the questions of a JSON value by name: one question, a list, or a mapping of names to questions.

    `{"type": "choice", "instructions": "Which?", "choices": ["a", {"value": "b", "description": "the other"}]}`
    """
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        value = [value]
    if isinstance(value, Mapping):
        return {str(name): parse_question(one, f"question {show(name)}") for name, one in value.items()}
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RequestError(f"questions are a JSON object or a list, got {show(value)}")
    found: dict[str, Asked] = {}
    for place, one in enumerate(value, 1):
        name = one.get("name") if isinstance(one, Mapping) else None
        key = f"q{place}" if name is None else str(name)
        if key in found:
            raise RequestError(f"two questions are named {show(key)}")
        found[key] = parse_question(one, f"question {place}")
    return found


def parse_question(value: Any, where: str = "question") -> Asked:
    """Return one question of a JSON value. Raises RequestError that says `where` it is."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object, got {show(value)}")
    kind = value.get("type")
    try:
        one_of("type", kind, KEYS, RequestError)
        check_keys(value, ("type", "name", "instructions", "depends_on", *KEYS[str(kind)]), RequestError)
        return _make(str(kind), value)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error


def _make(kind: str, value: Mapping[str, Any]) -> Asked:
    about, after = value.get("instructions", ""), value.get("depends_on", ())
    if kind == "predicate":
        return Predicate(about, depends_on=after)
    if kind == "choice":
        return Choice(about, _choices(value.get("choices")), read=value.get("read", "letters"), depends_on=after)
    if kind == "score":
        levels = value.get("levels")
        return Score(about, [_labelled(one) for one in levels] if isinstance(levels, list) else [], depends_on=after)
    if kind == "integer":
        return Integer(about, value.get("digits", 2), depends_on=after)
    if kind == "text":
        return Text(about, value.get("regex"), tokens=value.get("tokens", TOKENS), depends_on=after)
    return Object.from_schema(value.get("schema", {}), about, tokens=value.get("tokens", TOKENS), depends_on=after)


def _choices(value: Any) -> dict[Any, Any]:
    if not isinstance(value, list):
        raise RequestError(f"choices must be a list, got {show(value)}")
    for one in value:
        if isinstance(one, Mapping):
            check_keys(one, ("value", "description"), RequestError)
    return describe_choices(
        (one.get("value"), one.get("description")) if isinstance(one, Mapping) else (one, None) for one in value
    )


def _labelled(value: Any) -> Any:
    """Return the text of a level, with its description if it has one."""
    if not isinstance(value, Mapping):
        return value
    check_keys(value, ("label", "description"), RequestError)
    about = value.get("description")
    return value.get("label") if about is None else f"{value.get('label')}: {about}"

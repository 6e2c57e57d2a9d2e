"""Closed JSON schemas as fields of an object: enumerations, and regular expressions for everything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from foretell.decide.grammar import escape
from foretell.errors import RequestError, show, unknown

MOST_VALUES = 10_000  # of an enumeration
MOST_ITEMS = 64
MOST_REFERENCES = 1000
DEFINED = ("$defs", "definitions")  # where schemas are that others refer to
SAFE = r'[^"\\\x00-\x1f\x7f-\x9f]'  # characters that a JSON string holds as they are
ABOUT = ("title", "description", "$schema", "$id", "default", "examples", "$comment")  # say nothing about a value
KNOWN: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": (),
    "boolean": (),
    "null": (),
}
INTEGER, NUMBER = r"-?(0|[1-9][0-9]{0,15})", r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?"


class Described(NamedTuple):
    """A field of a schema: one of `values`, or a text that matches `regex`; `quoted` if it is inside of a string."""

    about: str
    values: tuple[Any, ...] = ()
    regex: str | None = None
    quoted: bool = False


def read_schema(schema: Any) -> dict[str, Any]:
    """Return the fields of a closed JSON schema. Raises RequestError that names the part that is not supported."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise RequestError(f"a schema must describe an object, got {show(schema)}")
    definitions = {f"#/{key}/{name}": one for key in DEFINED for name, one in _definitions(schema, key).items()}
    bare = {key: value for key, value in schema.items() if key not in DEFINED}
    return _fields(_Resolver(definitions).resolve(bare, "$", ()), "$")


def _definitions(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = schema.get(key, {})
    if not isinstance(found, Mapping):
        raise RequestError(f"$.{key} must be an object with schemas, got {show(found)}")
    return found


@dataclass(slots=True)
class _Resolver:
    """Replaces references to the definitions of a schema by what they refer to."""

    definitions: Mapping[str, Any]  # by reference
    replaced: int = 0

    def resolve(self, schema: Any, where: str, inside: tuple[str, ...]) -> Any:
        """Return a schema without references. `inside` are the references that it is a part of."""
        if not isinstance(schema, Mapping):
            return schema
        name = schema.get("$ref")
        if name is not None:
            if not isinstance(name, str) or name not in self.definitions:
                raise RequestError(f"{where}: {unknown('reference', name, self.definitions)}")
            if name in inside:
                raise RequestError(f"{where}: {show(name)} contains itself, so its values have no largest depth")
            self.replaced += 1
            if self.replaced > MOST_REFERENCES:
                raise RequestError(f"{where}: a schema may refer to definitions at most {MOST_REFERENCES} times")
            others = {key: value for key, value in schema.items() if key != "$ref"}
            meant = self.resolve(self.definitions[name], where, (*inside, name))
            return {**meant, **others} if isinstance(meant, Mapping) else meant
        made = dict(schema)
        if isinstance(made.get("properties"), Mapping):
            made["properties"] = {
                key: self.resolve(one, f"{where}.{key}", inside) for key, one in made["properties"].items()
            }
        if "items" in made:
            made["items"] = self.resolve(made["items"], f"{where}[]", inside)
        if isinstance(made.get("anyOf"), list):
            made["anyOf"] = [
                self.resolve(one, f"{where}.anyOf[{place}]", inside) for place, one in enumerate(made["anyOf"])
            ]
        return made


def _fields(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    properties = _closed(schema, where)
    made: dict[str, Any] = {}
    for name, inner in properties.items():
        place = f"{where}.{name}"
        if isinstance(inner, Mapping) and inner.get("type") == "object" and "enum" not in inner:
            made[name] = _fields(inner, place)
        else:
            made[name] = _describe(inner, place)
    return made


def _closed(schema: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the properties of an object. Raises RequestError unless exactly these have to be there."""
    _check(schema, "object", where)
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise RequestError(f"{where}: an object needs properties")
    if schema.get("additionalProperties") is not False:
        raise RequestError(f"{where}: the object is not closed; it needs additionalProperties: false")
    missing = [name for name in properties if name not in schema.get("required", ())]
    if missing:
        raise RequestError(f"{where}: every property must be required, but {show(missing[0])} is not")
    return properties


def _check(schema: Mapping[str, Any], kind: str, where: str) -> None:
    for key in schema:
        if key not in (*KNOWN[kind], *ABOUT, "type"):
            raise RequestError(f"{where}: {show(key)} is not supported for type {kind}")


def _describe(schema: Any, where: str) -> Described:
    about = schema.get("description", "") if isinstance(schema, Mapping) else ""
    values = _enumerate(schema, where)
    if values is not None:
        return Described(about, values)
    if schema.get("type") == "string":
        return Described(about, regex=_string(schema, where), quoted=True)
    return Described(about, regex=regex_of(schema, where))


def _enumerate(schema: Any, where: str) -> tuple[Any, ...] | None:
    """Return all values of a schema that has few, or None."""
    if not isinstance(schema, Mapping):
        raise RequestError(f"{where}: a schema must be an object, got {show(schema)}")
    if "enum" in schema or "const" in schema:
        for key in schema:
            if key not in ("enum", "const", "type", *ABOUT):
                raise RequestError(f"{where}: {show(key)} is not supported beside enum or const")
        listed = schema.get("enum", [schema.get("const")])
        if not isinstance(listed, list) or not listed:
            raise RequestError(f"{where}: enum must be a list with values, got {show(listed)}")
        values = [value for value in listed if _has_type(value, schema.get("type"))]
        if not values:
            raise RequestError(f"{where}: no value of the enum has the type {show(schema.get('type'))}")
        return tuple({json.dumps(value, sort_keys=True): value for value in values}.values())
    kind = schema.get("type")
    if kind == "boolean":
        _check(schema, "boolean", where)
        return True, False
    if kind == "integer" and any(key in schema for key in KNOWN["integer"]):
        return _integers(schema, where)
    return None


def _has_type(value: Any, kind: Any) -> bool:
    types: dict[Any, Callable[[Any], bool]] = {
        None: lambda _: True,
        "string": lambda one: isinstance(one, str),
        "boolean": lambda one: isinstance(one, bool),
        "null": lambda one: one is None,
        "integer": lambda one: isinstance(one, int) and not isinstance(one, bool),
        "number": lambda one: isinstance(one, int | float) and not isinstance(one, bool),
        "array": lambda one: isinstance(one, list),
        "object": lambda one: isinstance(one, dict),
    }
    return kind in types and types[kind](value)


def _integers(schema: Mapping[str, Any], where: str) -> tuple[int, ...]:
    _check(schema, "integer", where)
    bounds = {key: schema[key] for key in KNOWN["integer"] if key in schema}
    for key, bound in bounds.items():
        if isinstance(bound, bool) or not isinstance(bound, int) or (key == "multipleOf" and bound < 1):
            raise RequestError(f"{where}: {key} must be a whole number, got {show(bound)}")
    lows = [bounds[key] + more for key, more in (("minimum", 0), ("exclusiveMinimum", 1)) if key in bounds]
    highs = [bounds[key] - less for key, less in (("maximum", 0), ("exclusiveMaximum", 1)) if key in bounds]
    if not lows or not highs:
        raise RequestError(f"{where}: an integer with a bound needs a minimum and a maximum")
    low, high = max(lows), min(highs)
    values = range(low, high + 1)
    if len(values) > MOST_VALUES:
        raise RequestError(f"{where}: {len(values)} integers are too many; {MOST_VALUES} at most")
    kept = tuple(value for value in values if value % bounds.get("multipleOf", 1) == 0)
    if not kept:
        raise RequestError(f"{where}: no integer is allowed from {low} to {high}")
    return kept


def _string(schema: Mapping[str, Any], where: str) -> str:
    _check(schema, "string", where)
    least, most, pattern = schema.get("minLength", 0), schema.get("maxLength"), schema.get("pattern")
    if pattern is not None:
        if "minLength" in schema or "maxLength" in schema:
            raise RequestError(f"{where}: a pattern and a length together are not supported")
        if not isinstance(pattern, str):
            raise RequestError(f"{where}: pattern must be a text, got {show(pattern)}")
        return pattern.removeprefix("^").removesuffix("$")
    for key, value in (("minLength", least), ("maxLength", most)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000):
            raise RequestError(f"{where}: {key} must be a whole number from 0 to 1000, got {show(value)}")
    return f"{SAFE}{{{least},{'' if most is None else most}}}"


def regex_of(schema: Any, where: str) -> str:
    """Return a regular expression for the JSON of a schema, without optional blanks."""
    values = _enumerate(schema, where)
    if values is not None:
        return _either(escape(json.dumps(value, ensure_ascii=False)) for value in values)
    if "anyOf" in schema:
        for key in schema:
            if key not in ("anyOf", *ABOUT):
                raise RequestError(f"{where}: {show(key)} is not supported beside anyOf")
        return _either(regex_of(one, f"{where}.anyOf[{place}]") for place, one in enumerate(schema["anyOf"]))
    kind = schema.get("type")
    if kind not in KNOWN:
        raise RequestError(f"{where}: {unknown('type', kind, KNOWN)}")
    if kind == "object":
        fields = _closed(schema, where)
        parts = (f"{escape(json.dumps(name))}: {regex_of(one, f'{where}.{name}')}" for name, one in fields.items())
        return rf"\{{{', '.join(parts)}\}}"
    if kind == "array":
        return _array(schema, where)
    if kind == "string":
        if "pattern" in schema:
            raise RequestError(f"{where}: a pattern is supported for fields of objects, not inside arrays or anyOf")
        return f'"{_string(schema, where)}"'
    _check(schema, kind, where)
    return {"integer": INTEGER, "number": NUMBER, "null": "null"}[kind]


def _array(schema: Mapping[str, Any], where: str) -> str:
    _check(schema, "array", where)
    least: Any = schema.get("minItems", 0)
    most: Any = schema.get("maxItems")
    for key, value in (("minItems", least), ("maxItems", most)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_ITEMS:
            raise RequestError(f"{where}: an array needs {key} from 0 to {MOST_ITEMS}, got {show(value)}")
    if least > most:
        raise RequestError(f"{where}: minItems {least} is above maxItems {most}")
    if most == 0:
        return r"\[\]"
    item = regex_of(schema.get("items"), f"{where}[]")
    several = f"({item})(, ({item})){{{max(0, least - 1)},{most - 1}}}"
    return rf"\[{several}\]" if least else rf"\[({several})?\]"


def _either(parts: Iterator[str]) -> str:
    return f"({'|'.join(parts)})"

"""Policies as text and back: `prophet(tau=staged(high=8.0))`, with errors that name the nearest match."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from keyword import iskeyword
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from foretell.errors import RecipeError, show, unknown
from foretell.loop.protocols import Cache, Region, Sample, Score, Stop, Transfer, UntrustedText, Verify, Visible
from foretell.policies import POLICIES
from foretell.policies.stop.scales import Scale
from foretell.policies.stop.schedules import Schedule

KINDS: dict[Any, str] = {
    Cache: "cache",
    Sample: "sample",
    Region: "region",
    Score: "score",
    Transfer: "transfer",
    Stop: "stop",
    Schedule: "schedule",
    Verify: "verify",
    Visible: "visible",
    Scale: "scale",
}
# A text in quotes. One without a closing quote reaches to the end, so that no character is searched twice.
LITERAL = re.compile(r"""(?P<raw>(?<!\w)[rR])?(?:'(?:\\.|[^'\\])*(?:'|\\?\Z)|"(?:\\.|[^"\\])*(?:"|\\?\Z))""", re.DOTALL)
LONGEST = 100_000  # characters of a recipe
DEEPEST = 50  # policies inside one another
_ESCAPES = "\\'\"abfnrtvxuUN01234567\n"  # characters that may follow a backslash
RENAMED = {"window": "visible"}  # parameters of recipe texts that version 0.1.0 wrote
_WORDS = {"true": True, "false": False, "none": None, "inf": float("inf")}
_UNTRUSTED = ContextVar("untrusted", default=False)


@contextmanager
def untrusted() -> Iterator[None]:
    """Parse recipes in this block as text from a request or a stored file: what they name is not opened."""
    token = _UNTRUSTED.set(True)
    try:
        yield
    finally:
        _UNTRUSTED.reset(token)


def is_untrusted() -> bool:
    """Return whether the text that is parsed now came from a request or a stored file."""
    return _UNTRUSTED.get()


def format_value(value: object) -> str:
    """Return the text of a policy or parameter, without the fields that hold their default."""
    if isinstance(value, tuple):
        return ",".join(format_value(item) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return _format_plain(value)
    changed = [field for field in fields(value) if getattr(value, field.name) != field.default]
    given = ",".join(
        format_value(item) if isinstance(item, tuple) else f"{field.name}={format_value(item)}"
        for field in changed
        for item in [getattr(value, field.name)]
    )
    name = _name(type(value))
    return f"{name}({given})" if given else name


def _format_plain(value: object) -> str:
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool | None) else str(value)
    bare = value.isascii() and value.isidentifier() and not iskeyword(value) and value.lower() not in _WORDS
    return value if bare else repr(value)


def parse_value(hint: Any, text: str, where: str) -> Any:
    """Parse `text` as a value of the type `hint`."""
    check_length(text)
    for literal in LITERAL.finditer(text):
        pairs = [] if literal["raw"] else re.findall(r"\\.", literal[0], re.DOTALL)
        if any(pair[1] not in _ESCAPES for pair in pairs):
            raise RecipeError(f"{where} has a backslash with no meaning; write r{literal[0]} to keep it")
    try:
        if "#" in LITERAL.sub("", text):
            raise SyntaxError("Python would ignore what follows")
        node = ast.parse(text.strip(), mode="eval").body
        _check_depth(node)
    except (RecursionError, MemoryError):
        raise RecipeError(f"cannot read {where}={show(text)}: it is nested more than {DEEPEST} deep") from None
    except (SyntaxError, ValueError):
        allowed = "a number, a word, a text in quotes, or a policy such as prophet(q=0.1)"
        raise RecipeError(f"cannot read {where}={show(text)}; write {allowed}") from None
    return _value(hint, node, where)


def check_length(text: str) -> None:
    """Raise RecipeError if the text of a recipe or a value is too long."""
    if len(text) > LONGEST:
        raise RecipeError(f"a recipe has at most {LONGEST:,} characters, got {len(text):,}: {show(text)}")


def _check_depth(node: ast.AST) -> None:
    """Raise RecursionError if a policy is nested too deeply for the recursive functions that read and run it."""
    level = [node]
    for _ in range(2 * DEEPEST):  # `stop=all(...)` are two nodes, a name and a call
        level = [inner for outer in level for inner in ast.iter_child_nodes(outer)]
    if level:
        raise RecursionError


def adjust(value: Any, settings: Iterable[tuple[str, str]], where: str = "") -> Any:
    """Return a copy of dataclass `value` with fields, given by dotted paths, set to values parsed from text.

    The copy is checked after all fields are set, because two settings may depend on each other.
    """
    hints = hints_of(type(value))
    changed: dict[str, Any] = {name: getattr(value, name) for name in hints}
    for path, text in settings:
        name, _, rest = path.partition(".")
        name = _current_name(name, hints)
        place = f"{where}.{name}" if where else name
        if name not in hints:
            raise RecipeError(unknown(f"parameter of {name_of(value)}", name, hints))
        inner = changed[name]
        if rest and not is_dataclass(inner):
            raise RecipeError(f"{place} has no parameters, so there is no {place}.{rest}")
        changed[name] = adjust(inner, [(rest, text)], place) if rest else parse_value(hints[name], text, place)
    return replace(value, **changed)


def _current_name(name: str, hints: dict[str, Any]) -> str:
    """Return the current name of a parameter that may be given by its name in an older version."""
    return name if name in hints or RENAMED.get(name) not in hints else RENAMED[name]


def hints_of(cls: type) -> dict[str, Any]:
    """Return the parameters of a dataclass and their types, in order."""
    resolved = get_type_hints(cls)
    return {field.name: resolved[field.name] for field in fields(cls)}


def signature(cls: type) -> str:
    """Return a policy's parameters with their defaults, for listings."""
    return ", ".join(f"{field.name}={_default(field)}" for field in fields(cls))


def _default(field: Field[Any]) -> str:
    return "..." if field.default is MISSING else format_value(field.default)


def _name(cls: type) -> str:
    """Return the name under which a policy is registered. Raises RecipeError if it has none."""
    if cls in (names := _names()):
        return names[cls]
    raise RecipeError(f"{cls.__name__} has no name in recipes; give it one: POLICIES[kind][name] = {cls.__name__}")


def _names() -> dict[type, str]:
    """Return every policy's name; not cached, because plugins may register more."""
    return {cls: name for policies in POLICIES.values() for name, cls in policies.items()}


def name_of(value: Any) -> str:
    """Return the name of a policy for messages: its name in recipes, if it has one."""
    return _names().get(type(value), type(value).__name__.lower())


def _value(hint: Any, node: ast.expr, where: str) -> Any:
    if hint in KINDS:
        return _policy(KINDS[hint], node, where)
    if get_origin(hint) in (Union, UnionType):
        return _optional(hint, node, where)
    plain = _plain(node, where)
    if get_origin(hint) is Literal:
        return _require(plain in get_args(hint), plain, unknown(where, plain, map(format_value, get_args(hint))))
    if hint is float and isinstance(plain, int) and not isinstance(plain, bool):
        plain = float(str(plain))  # `float(plain)` is an error above 1e308
    _require(type(plain) is hint, plain, f"{where} must be {_describe_type(hint)}, got {ast.unparse(node)}")
    return UntrustedText(plain) if hint is str and is_untrusted() else plain


def _optional(hint: Any, node: ast.expr, where: str) -> Any:
    if isinstance(node, ast.Name) and node.id.lower() == "none" and NoneType in get_args(hint):
        return None
    (only,) = (arg for arg in get_args(hint) if arg is not NoneType)
    return _value(only, node, where)


def _policy(kind: str, node: ast.expr, where: str) -> Any:
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name):
        raise RecipeError(f"{where} must name a {kind}, got {ast.unparse(node)} ({', '.join(sorted(POLICIES[kind]))})")
    name = call.func.id
    if name not in POLICIES[kind]:
        raise RecipeError(unknown(kind, name, POLICIES[kind]))
    cls = POLICIES[kind][name]
    hints = hints_of(cls)
    if len(hints) == 1 and get_origin(next(iter(hints.values()))) is tuple:  # all(...), any(...)
        for word in call.keywords:
            raise RecipeError(f"{name} takes only rules without names, got {word.arg or '**'}=...")
        item = get_args(next(iter(hints.values())))[0]
        return cls(tuple(_value(item, arg, f"{where}[{i}]") for i, arg in enumerate(call.args)))
    given = _given(call, name, hints, where)
    for one in fields(cls):
        if one.init and one.name not in given and one.default is one.default_factory is MISSING:
            raise RecipeError(f"{where} needs {name}'s {one.name}: {name}({one.name}=...)")
    return cls(**{parameter: _value(hints[parameter], arg, f"{where}.{parameter}") for parameter, arg in given.items()})


def _given(call: ast.Call, name: str, hints: dict[str, Any], where: str) -> dict[str, ast.expr]:
    """Return the parameters that a call gives by place or by name, each at most once."""
    if len(call.args) > len(hints):
        raise RecipeError(f"{name} takes {len(hints)} parameters ({', '.join(hints) or 'none'}), got {len(call.args)}")
    given = dict(zip(hints, call.args, strict=False))
    for word in call.keywords:
        parameter = _current_name(word.arg or "**", hints)
        if parameter not in hints:
            raise RecipeError(unknown(f"parameter of {name}", parameter, hints))
        if parameter in given:
            raise RecipeError(f"{where} gives {name}'s {parameter} twice")
        given[parameter] = word.value
    return given


def _plain(node: ast.expr, where: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id.lower(), node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _plain(node.operand, where)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number
    raise RecipeError(f"{where} must be a number, a word, true or false, got {ast.unparse(node)}")


def _require(right: bool, value: Any, message: str) -> Any:
    if not right:
        raise RecipeError(message)
    return value


def _describe_type(hint: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}.get(
        hint, str(hint)
    )

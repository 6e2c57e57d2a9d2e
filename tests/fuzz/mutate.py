"""Damage valid inputs: values, texts, bytes and files. All randomness comes from the caller's generator."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

DEEP = 100_000  # levels of nesting
LONG = 1_000_000  # letters
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 2**31, -(2**31), 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, -(10**30), 10**400, 10**5000),
    *(0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e308, -1e308, 1e30, nan, inf, -inf),
)
TEXTS = (
    "", " ", "a", "full", "\0", "a\0b", "\ufeff", "\ufeffa", "\ud800", "\udc80\udcff", "\udfff\ud800", "\u202eab\u202c",
    "e\u0301\u0301", "\U0001f642\u200d\U0001f642", "\u2028\u2029\x85", "\r\n", "\x1b[31m", "%s%n{0}{x}", "'\"\\`$",
    "<|mdm_mask|>", "<|endoftext|>", "<|eot_id|>", "[MASK]", "<mask>", "</s>", "<|startoftext|>", "true", "null", "İﬀß",
    "../../x", "/dev/zero", "/", ".", "a/b.json", "x" * 300, "1" * 5000, "__class__", "{{ 1 }}", "{% for %}",
)  # fmt: skip
_DEEP_MARK = "\x01deep"


def odd_number(rng: Random) -> Any:
    return rng.choice(NUMBERS)


def odd_text(rng: Random) -> str:
    if rng.random() < 0.005:
        return rng.choice(("a", " ", "\0", "é", "(", "<|mdm_mask|>")) * LONG
    if rng.random() < 0.4:
        return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) for _ in range(rng.randrange(12)))
    return rng.choice(TEXTS)


def odd_value(rng: Random) -> Any:
    """Return a value of any JSON type."""
    kind = rng.randrange(8)
    if kind < 2:
        return odd_number(rng)
    if kind < 4:
        return odd_text(rng)
    if kind == 4:
        return {odd_text(rng): odd_value(rng) for _ in range(rng.randrange(3))}
    if kind == 5:
        return [odd_value(rng) for _ in range(rng.randrange(3))]
    return rng.choice((None, True, False, [[1, 2]], [[[]]] * 3))


def odd_object(rng: Random) -> Any:
    """Return a value of any type that a Python caller may pass."""
    others = (b"ab", bytearray(b"a"), 1j, object(), object, {1, 2}, (1, "a"), range(3), Path("x"), len, Exception("x"))
    if rng.random() < 0.01:
        return _nest()
    return rng.choice(others) if rng.random() < 0.3 else odd_value(rng)


def _nest() -> list[Any]:
    value: list[Any] = []
    for _ in range(DEEP):
        value = [value]
    return value


def mutate_value(rng: Random, value: Any) -> Any:
    """Return a copy of a JSON value with one or more places changed."""
    value = deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _change_place(rng, value)
    return value


def _change_place(rng: Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.02:
        return _DEEP_MARK if rng.random() < 0.02 else _near(rng, value) if rng.random() < 0.3 else odd_value(rng)
    key: Any = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    if rng.random() < 0.75 or (isinstance(value[key], dict | list) and rng.random() < 0.8):
        value[key] = _change_place(rng, value[key])
    elif rng.random() < 0.5:
        del value[key]
    elif isinstance(value, dict):
        other = odd_text(rng) if rng.random() < 0.5 else rng.choice(list(value))
        value[other] = value.pop(key)
    else:
        value.insert(rng.randrange(len(value) + 1), rng.choice((value[key], odd_value(rng))))
    return value


def _near(rng: Random, value: Any) -> Any:
    """Return a similar value of the same type."""
    if isinstance(value, str):
        return mutate_text(rng, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return rng.choice((value + 1, value - 1, -value, value * 2, value / 2 if abs(value) < 1e9 else 0.5))
    return not value


def mutate_text(rng: Random, text: str) -> str:
    """Return a text with letters deleted, repeated, moved or replaced."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, size = rng.randrange(len(text) + 1), rng.choice((1, 1, 2, 8, 100))
        part = text[at : at + size]
        new = rng.choice(("", part * 2, part * rng.randrange(40), odd_text(rng), part[::-1], chr(rng.randrange(128))))
        text = text[:at] + new + text[at + size :]
    return text


def mutate_bytes(rng: Random, data: bytes) -> bytes:
    """Return bytes with bits flipped, parts deleted, repeated, moved or overwritten, or the end cut off."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 8, 100, len(data) // 2))
        end = at + size
        part = data[at:end]
        flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in part)
        other = rng.randrange(len(data) + 1)
        noise = rng.choice((rng.randbytes(size), b"\0" * size, b"\xff" * size, b"[" * DEEP))
        data = rng.choice(
            (
                data[:at] + flipped + data[end:],
                data[:at] + data[end:],
                data[:at] + part + data[at:],
                data[:at],
                data[:at] + noise + data[end:],
                data[:at] + data[other : other + size] + data[end:],
                b"" if rng.random() < 0.1 else data[:at] + flipped + data[end:],
            )
        )
    return data


def write_json(rng: Random, value: Any) -> bytes:
    """Return JSON, which may hold NaN, lone surrogates, 100,000 levels, or numbers that Python refuses to print."""
    escaped = rng.random() < 0.5
    text = json.dumps(_printable(value), ensure_ascii=escaped)
    deep = rng.choice(("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * DEEP))
    text = text.replace(json.dumps(_DEEP_MARK), deep).replace('"\\u0002huge"', "1" * 5000)
    return text.encode("utf8", "surrogatepass")


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _printable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_printable(one) for one in value]
    return "\x02huge" if isinstance(value, int) and abs(value) >= 10**4000 else value


def mutate_json(rng: Random, data: bytes) -> bytes:
    """Return the bytes of a JSON text or of JSON lines with a value changed; sometimes only bytes are changed."""
    if rng.random() < 0.25:
        return mutate_bytes(rng, data)
    lines = data.splitlines(keepends=True)
    try:
        at = rng.randrange(len(lines))
        lines[at] = write_json(rng, mutate_value(rng, json.loads(lines[at]))) + b"\n"
        return b"".join(lines)
    except (ValueError, RecursionError):  # not JSON lines
        pass
    try:
        return write_json(rng, mutate_value(rng, json.loads(data)))
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data)


def damage_file(rng: Random, path: Path, change: Callable[[Random, bytes], bytes] | None = None) -> None:
    """Change the content of a file, by default as JSON or as bytes; sometimes put something else in its place."""
    if rng.random() < 0.93:
        by_suffix = mutate_json if path.suffix in (".json", ".jsonl") else mutate_bytes
        changed = (change or by_suffix)(rng, path.read_bytes())
        path.unlink()  # never shorten a file that may still be mapped into memory
        path.write_bytes(changed)
        return
    path.unlink()
    what = rng.randrange(6)
    if what == 0:
        path.mkdir()
    elif what == 1:
        os.mkfifo(path)
    elif what == 2:
        path.symlink_to("/dev/zero")
    elif what == 3:
        path.symlink_to(path)
    elif what == 4:
        path.write_bytes(b"")

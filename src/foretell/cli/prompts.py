"""Prompts from the command line, a file or standard input, all of them read before anything is decoded."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.errors import RequestError, unknown

if TYPE_CHECKING:
    from foretell.engine.engine import Prompt

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt, what to call it, and where it was read."""

    id: str | int
    prompt: Prompt
    where: str = ""  # "prompts.jsonl, line 3"


def gather(prompt: str | None, file: str | None) -> list[Asked]:
    """The prompts of a command: one argument (`-` is standard input, all of it), or the lines of a file."""
    if (prompt is None) == (file is None):
        raise RequestError("give one prompt, or a file of them with --file" + (", not both" if prompt else ""))
    if file is None:
        return [Asked(1, sys.stdin.read().rstrip("\n") if prompt == STDIN else prompt or "")]
    lines = _read(file).splitlines()
    title = "standard input" if file == STDIN else file
    spoken = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not spoken:
        raise RequestError(f"{title} has no prompts in it")
    plain = _is_plain(file, spoken[0][1])
    return [_asked(line, at + 1, f"{title}, line {number}", plain) for at, (number, line) in enumerate(spoken)]


def _read(file: str) -> str:
    if file == STDIN:
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf8")
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _is_plain(file: str, first: str) -> bool:
    """Whether each line is a prompt as it stands: a .txt file, or standard input that is no JSON."""
    if file == STDIN:
        return not first.lstrip().startswith(("{", '"'))
    return Path(file).suffix == ".txt"


def _asked(line: str, number: int, where: str, plain: bool) -> Asked:
    if plain:
        return Asked(number, line, where)
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from error
    if isinstance(value, str):
        return Asked(number, value, where)
    if not isinstance(value, dict):
        raise RequestError(f"{where}: must be a string or an object, got {line.strip()[:40]}")
    return Asked(_id(value, number, where), _prompt(value, where), where)


def _id(value: Mapping[str, Any], number: int, where: str) -> str | int:
    name = value.get("id", number)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise RequestError(f'{where}: "id" must be a string or a whole number, got {json.dumps(name)[:40]}')
    return name


def _prompt(value: Mapping[str, Any], where: str) -> Prompt:
    given = [key for key in ("prompt", "messages") if key in value]
    if len(given) == 2:
        raise RequestError(f'{where}: has both "prompt" and "messages"; give one of them')
    if not given:
        stray = next((key for key in value if key != "id"), "")
        raise RequestError(f"{where}: {unknown('key', stray, ('prompt', 'messages', 'id'))}")
    said = value[given[0]]
    if given == ["messages"]:
        return _messages(said, where)
    if not isinstance(said, str):
        raise RequestError(f'{where}: "prompt" must be a string, got {json.dumps(said)[:40]}')
    return said


def _messages(said: Any, where: str) -> Prompt:
    if not isinstance(said, list) or not said:
        raise RequestError(f'{where}: "messages" must be a list of messages')
    for message in said:
        keys = ("role", "content")
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in keys):
            raise RequestError(f'{where}: a message needs "role" and "content", got {json.dumps(message)[:60]}')
    return said

"""Turn chat messages into prompt text with the checkpoint's own template, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from foretell.errors import ModelError, RequestError, unknown
from foretell.models.tokenizer import named_tokens, read_json

ROLES = ("assistant", "developer", "system", "user")
KEYS = ("content", "name", "role")
PARTS = ("text",)  # types of content parts

Message = Mapping[str, Any]  # role, content (a text, or a list of text parts), and maybe a name


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template in Jinja, as in Hugging Face checkpoints. It can only format text."""

    source: str  # its file, for error messages
    text: str
    names: tuple[tuple[str, str], ...] = ()  # bos_token, eos_token, ... as the template may call them
    documented: bool = False  # whether it is the family's published template, not one from the folder

    @classmethod
    def find(cls, folder: Path) -> ChatTemplate | None:
        """Return the template in `folder`: chat_template.jinja, otherwise the one in tokenizer_config.json."""
        names = tuple(sorted(named_tokens(folder).items()))
        file = folder / "chat_template.jinja"
        if file.is_file():
            return cls(str(file), file.read_text(encoding="utf-8"), names)
        file = folder / "tokenizer_config.json"
        stated = read_json(file).get("chat_template")
        if isinstance(stated, list):  # several templates by name
            stated = {entry.get("name"): entry.get("template") for entry in stated}.get("default")
        return cls(str(file), stated, names) if isinstance(stated, str) else None

    def render(self, messages: Sequence[Message] | str) -> str:
        """Return the text of a conversation, up to the start of the assistant's reply."""
        conversation = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else check_messages(messages)
        )
        if "developer" not in self.text:  # the newer name of a system message, which older templates do not know
            conversation = [one | {"role": "system"} if one["role"] == "developer" else one for one in conversation]
        template = _compile_template(self.source, self.text)
        try:
            return template.render(messages=conversation, add_generation_prompt=True, **dict(self.names))
        except _RefusedError as problem:
            raise RequestError(f"{self.source}: the chat template refuses these messages: {problem}") from problem
        except (TemplateError, TypeError, ValueError) as problem:
            raise ModelError(f"{self.source}: the chat template fails on these messages: {problem}") from problem


def check_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return the messages with their text parts joined by newlines. Raises RequestError if one is invalid."""
    if not messages:
        raise RequestError("a chat has no messages; it needs at least one")
    return [_check_message(f"message {index}", message) for index, message in enumerate(messages)]


def _check_message(which: str, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{which} is a {type(message).__name__}; it must be an object with role and content")
    for key in message:
        if key not in KEYS:
            raise RequestError(f"{which}: {unknown('key', str(key), KEYS)}")
    checked = {**message, "content": _join_content(which, message.get("content"))}
    for key in ("role", *message):
        if not isinstance(checked.get(key), str):
            shown = repr(message[key]) if key in message else "missing"
            raise RequestError(f"{which}: {key!r} is {shown:.80}; it must be a string")
    if checked["role"] not in ROLES:
        raise RequestError(f"{which}: {unknown('role', checked['role'], ROLES)}")
    return checked


def _join_content(which: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or not content:
        shown = "missing" if content is None else f"{content!r:.80}"
        raise RequestError(f"{which}: 'content' is {shown}; it must be a string or a list of text parts")
    return "\n".join(_read_part(f"{which}, part {index}", part) for index, part in enumerate(content))


def _read_part(which: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f"{which} is {part!r:.80}; it must be an object with type and text")
    if part.get("type") not in PARTS:
        raise RequestError(f"{which}: {unknown('type', str(part.get('type')), PARTS)}; only text is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{which}: 'text' is {text!r:.80}; it must be a string")
    return text


class _RefusedError(TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """Renders the body of {% generation %}, which marks the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=16)
def _compile_template(source: str, text: str) -> Template:
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals = {
        "raise_exception": _refuse,
        "strftime_now": _format_now,
        "range": sandbox.globals["range"],  # the sandbox's own, which is bounded
        "namespace": sandbox.globals["namespace"],
        "dict": sandbox.globals["dict"],
    }
    try:
        return sandbox.from_string(text)
    except TemplateError as problem:
        raise ModelError(f"{source}: the chat template is not valid Jinja: {problem}") from problem


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _format_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Convert to JSON. Jinja's own filter escapes for HTML, which would change a prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

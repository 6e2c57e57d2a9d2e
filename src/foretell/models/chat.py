"""Turn chat messages into prompt text with the checkpoint's own template, in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import ModelError, RequestError, show, unknown
from foretell.models.family import Settings, read_json
from foretell.models.render import render_template
from foretell.models.renderer import render_in_process
from foretell.models.tokenizer import named_tokens
from foretell.storage import read_text

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
        if file.exists():
            return cls(str(file), read_text(file, "chat template", ModelError), names)
        config = Settings(folder / "tokenizer_config.json", read_json(folder / "tokenizer_config.json"))
        stated = config.values.get("chat_template")
        if isinstance(stated, list) and all(isinstance(entry, dict) for entry in stated):  # several by name
            stated = next((entry.get("template") for entry in stated if entry.get("name") == "default"), None)
        if not isinstance(stated, str | None):
            raise config.problem("chat_template", "a text, or a list of objects with name and template")
        return None if stated is None else cls(str(config.file), stated, names)

    def render(self, conversation: Sequence[dict[str, str]]) -> str:
        """Return the text of checked messages, up to the start of the assistant's reply.

        A template from a folder runs in a process that has limits of time, memory and output.
        """
        if "developer" not in self.text:  # the newer name of a system message, which older templates do not know
            conversation = [one | {"role": "system"} if one["role"] == "developer" else one for one in conversation]
        run = render_template if self.documented else render_in_process
        result = run({"template": self.text, "messages": conversation, "names": dict(self.names)})
        if "text" in result:
            return result["text"]
        if "refused" in result:
            raise RequestError(f"{self.source}: the chat template refuses these messages: {result['refused']}")
        if "invalid" in result:
            raise ModelError(f"{self.source}: the chat template is not valid Jinja: {result['invalid']}")
        raise ModelError(f"{self.source}: the chat template fails on these messages: {result['failed']}")


def check_messages(messages: Sequence[Message] | str) -> list[dict[str, str]]:
    """Return the messages with their text parts joined by newlines; a string is one user message.

    Raises RequestError if a message is invalid.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not messages:
        raise RequestError("a chat has no messages; it needs at least one")
    return [_check_message(f"message {index}", message) for index, message in enumerate(messages)]


def _check_message(which: str, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{which} is a {type(message).__name__}; it must be an object with role and content")
    for key in message:
        if key not in KEYS:
            raise RequestError(f"{which}: {unknown('key', key, KEYS)}")
    checked = {**message, "content": _join_content(which, message.get("content"))}
    for key in ("role", *message):
        if not isinstance(checked.get(key), str):
            shown = show(message[key]) if key in message else "missing"
            raise RequestError(f"{which}: {key!r} is {shown}; it must be a string")
    if checked["role"] not in ROLES:
        raise RequestError(f"{which}: {unknown('role', checked['role'], ROLES)}")
    return checked


def _join_content(which: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or not content:
        shown = "missing" if content is None else show(content)
        raise RequestError(f"{which}: 'content' is {shown}; it must be a string or a list of text parts")
    return "\n".join(_read_part(f"{which}, part {index}", part) for index, part in enumerate(content))


def _read_part(which: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f"{which} is {show(part)}; it must be an object with type and text")
    if part.get("type") not in PARTS:
        raise RequestError(f"{which}: {unknown('type', part.get('type'), PARTS)}; only text is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{which}: 'text' is {show(text)}; it must be a string")
    return text

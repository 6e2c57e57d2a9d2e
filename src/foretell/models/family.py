"""The description of a family of checkpoints: its config.json, its tensor names, its tokens and chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.errors import ModelError
from foretell.loop.protocols import Denoiser
from foretell.models.transformer import TransformerConfig


@dataclass(frozen=True, slots=True)
class Settings:
    """A checkpoint's config.json; errors name the file, the key, the value and the allowed values."""

    file: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Settings:
        if not folder.is_dir():
            raise ModelError(f"{folder}: no such folder; a model is a folder with config.json and model.safetensors")
        file = folder / "config.json"
        if not file.is_file():
            raise ModelError(f"{file}: missing; a model is a folder with config.json and model.safetensors")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as problem:
            raise ModelError(f"{file}: not valid JSON ({problem})") from problem
        if not isinstance(values, dict):
            raise ModelError(f"{file}: holds a {type(values).__name__}; it must be a JSON object")
        return cls(file, values)

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1; null counts as absent."""
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.problem(key, "a whole number of at least 1")
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.problem(key, "a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """Return true or false; absent and null count as false."""
        value = self.values.get(key) or False
        if not isinstance(value, bool):
            raise self.problem(key, "true or false")
        return value

    def require(self, key: str, *allowed: Any) -> None:
        """Raise ModelError if the value is not in `allowed`; an absent key has the first allowed value."""
        value = self.values.get(key, allowed[0])
        if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed):
            raise self.problem(key, " or ".join(json.dumps(choice) for choice in allowed))

    def token(self, key: str, vocab_size: int) -> int | None:
        """Return a token id inside the vocabulary, or None if the file has none."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
            raise self.problem(key, f"a token id from 0 to {vocab_size - 1}")
        return value

    def problem(self, key: str, allowed: str) -> ModelError:
        shown = json.dumps(self.values[key]) if key in self.values else "missing"
        return ModelError(f"{self.file}: {key!r} is {shown}; it must be {allowed}")


@dataclass(frozen=True, slots=True)
class Family:
    """One entry of the registry in `load`."""

    name: str  # config.json's model_type, in lower case
    configure: Callable[[Settings], TransformerConfig]
    wrap: Callable[[Denoiser], Denoiser]
    outer: Mapping[str, str]  # our modules outside the blocks -> the checkpoint's
    block: str  # prefix of block {} in the checkpoint
    inner: Mapping[str, str]  # our modules inside a block -> the checkpoint's
    ignored: tuple[str, ...] = ()  # endings of stored tensors that are buffers, not weights
    vocab_size: int = 0  # of the published models; the tokens below are documented for it
    special: Mapping[str, int] = field(default_factory=dict)
    mask: str = ""
    ends: tuple[str, ...] = ()  # tokens that end a text; the first one also fills the rest of the window
    chat_template: str | None = None  # the documented one, for folders without their own
    words: str | None = None  # pattern that splits text before byte pairs are merged, without tokenizer.json

    def checkpoint_name(self, ours: str) -> str:
        """Return the checkpoint's name of our parameter `ours`."""
        module, _, leaf = ours.rpartition(".")
        if not module.startswith("blocks."):
            return f"{self.outer[module]}.{leaf}"
        _, index, inside = module.split(".", 2)
        return f"{self.block.format(index)}.{self.inner[inside]}.{leaf}"


def mask_token(settings: Settings, vocab_size: int, documented: tuple[int, int]) -> int:
    """Return the mask id of the config, or of `documented` (vocabulary size, mask id) if the size is the same.

    The mask id may come right after the vocabulary, because a mask is never an output.
    """
    stated = settings.token("mask_token_id", vocab_size + 1)
    if stated is not None:
        return stated
    published_size, published_id = documented
    if vocab_size == published_size:
        return published_id
    raise ModelError(
        f"{settings.file}: 'mask_token_id' is missing, and with a vocabulary of {vocab_size} the published model's "
        f"id ({published_id} of {published_size}) cannot be assumed; add the key with the id of the mask token"
    )

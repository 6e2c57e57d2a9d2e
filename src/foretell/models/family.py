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
from foretell.storage import load_json

LARGEST = 1 << 24  # of the sizes in a config.json: dimensions and rows of tensors
DEEPEST = 1 << 10  # layers
THETAS = (1.0, 1e30)  # the rotary base: beyond these, angles leave float32
EPSILONS = (1e-30, 1.0)  # what a norm adds: not zero in float32


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
        if not file.exists():
            raise ModelError(f"{file}: missing; a model is a folder with config.json and model.safetensors")
        return cls(file, read_json(file))

    def count(self, key: str, default: int | None = None, most: int = LARGEST) -> int:
        """Return a whole number from 1 to `most`; null counts as absent."""
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.problem(key, f"a whole number from 1 to {most}")
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """Return a number from `low` to `high`, which NaN is not; null counts as absent."""
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.problem(key, f"a number from {low:g} to {high:g}")
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
        shown = _show_json(self.values[key]) if key in self.values else "missing"
        return ModelError(f"{self.file}: {key!r} is {shown}; it must be {allowed}")


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`, or an empty one if the file does not exist."""
    if not file.exists():
        return {}
    values = load_json(file, "file", ModelError)
    if not isinstance(values, dict):
        raise ModelError(f"{file}: holds a {type(values).__name__}; it must be a JSON object")
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except (RecursionError, UnicodeEncodeError) as problem:  # JSON can write half a character, which no text holds
        raise ModelError(f"{file}: cannot be used: {problem}") from problem
    return values


def _show_json(value: Any) -> str:
    """Return the first characters of a value as JSON."""
    try:
        return f"{json.dumps(value):.80}"
    except RecursionError:
        return "nested too deeply"


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
    models: str = ""  # published checkpoints of this format
    checked: str = ""  # what its results were compared with
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

"""Damaged and hostile files of a checkpoint folder: a ModelError that names the file, at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from foretell.engine.certificate import model_hash
from foretell.engine.codec import Codec
from foretell.errors import ForetellError, ModelError, VocabularyError
from foretell.models.load import load_model
from foretell.models.tokenizer import explain_errors, read_tokenizer
from tests.engine.test_codec import dream, llada
from tests.models.checkpoints import write_llada

__all__ = ["dream", "llada"]  # fixtures

READ = {  # which fixture reads a file
    "config.json": "llada",
    "tokenizer.json": "llada",
    "tokenizer_config.json": "llada",
    "special_tokens_map.json": "llada",
    "chat_template.jinja": "llada",
    "vocab.json": "dream",
    "merges.txt": "dream",
    "added_tokens.json": "dream",
}
DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a folder": lambda file: file.mkdir(),
    "a pipe": os.mkfifo if sys.platform != "win32" else Path.mkdir,
    "endless": lambda file: file.symlink_to("/dev/zero"),
    "other bytes": lambda file: file.write_bytes(b"\xff\xfe\xff"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "deep objects": lambda file: file.write_text('{"a":' * 100_000),
    "a list": lambda file: file.write_text("[]"),
    "half a character": lambda file: file.write_text(r'{"eos_token": "\ud800"}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", READ)
def test_a_damaged_file_is_named(request: pytest.FixtureRequest, name: str, damage: str) -> None:
    folder: Path = request.getfixturevalue(READ[name])
    (folder / name).unlink(missing_ok=True)
    DAMAGE[damage](folder / name)
    if name.endswith(("jinja", "txt")) and damage in ("deep", "deep objects", "a list", "half a character"):
        (folder / name).write_text("text")  # which is not JSON
        Codec.load(folder)
        return
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        Codec.load(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index(tmp_path: Path, damage: str) -> None:
    write_llada(tmp_path, shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    DAMAGE[damage](tmp_path / "model.safetensors.index.json")
    with pytest.raises(ModelError, match="index"):
        load_model(tmp_path)


@pytest.mark.parametrize("damage", ["a folder", "a pipe", "endless", "other bytes", "deep"])
def test_damaged_weights(tmp_path: Path, damage: str) -> None:
    write_llada(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    DAMAGE[damage](tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "header", [b"[" * 50_000, b"{", b'{"a": 3}', b'{"a": {"dtype": "F32", "shape": [-1]}}', b"\xff"]
)
def test_a_damaged_header(tmp_path: Path, header: bytes) -> None:
    file = write_llada(tmp_path) / "model.safetensors"
    for size in (len(header), 1 << 40, (1 << 64) - 1):
        file.write_bytes(size.to_bytes(8, "little") + header)
        with pytest.raises(ModelError, match=r"model\.safetensors: not a complete safetensors file"):
            load_model(tmp_path)


def test_a_dtype_that_torch_does_not_have(tmp_path: Path) -> None:
    file = write_llada(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32","shape":[50,32]', b'"U32","shape":[50,32]'))
    with pytest.raises(ModelError, match=r"is stored as U32; it must be F32, BF16, F16"):
        load_model(tmp_path)


def test_a_linked_weight_file_is_fine(tmp_path: Path) -> None:
    file = write_llada(tmp_path / "a") / "model.safetensors"
    file.rename(tmp_path / "blob")
    file.symlink_to(tmp_path / "blob")
    load_model(tmp_path / "a")


@pytest.mark.parametrize("value", [3, [], ["x"], {}, {"content": 3}, True])
def test_named_tokens_are_texts(llada: Path, value: Any) -> None:
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        (llada / name).write_text(json.dumps({"eos_token": value, "image_token": value, "add_bos_token": True}))
        with pytest.raises(ModelError, match=rf"{name}: 'eos_token' is .*; it must be a text"):
            Codec.load(llada)
        (llada / name).write_text(json.dumps({"eos_token": None, "image_token": value}))
        Codec.load(llada)


@pytest.mark.parametrize("value", [3, {}, True, ["x"], [{"name": "default", "template": 3}]])
def test_a_chat_template_is_a_text(llada: Path, value: Any) -> None:
    (llada / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(
        ModelError, match=r"tokenizer_config\.json: 'chat_template' is .*; it must be a text, or a list"
    ):
        Codec.load(llada)


@pytest.mark.parametrize("value", [True, -1, 600, "x", 1e9, [7, -1], [[7]]])
def test_end_tokens_are_token_ids(llada: Path, value: Any) -> None:
    """Otherwise a filled window would hold an id that the embedding lacks."""
    values = json.loads((llada / "config.json").read_text())
    (llada / "config.json").write_text(json.dumps({**values, "eos_token_id": value}))
    with pytest.raises(ModelError, match=r"config\.json: 'eos_token_id' is .*; it must be a token id from 0 to 599"):
        Codec.load(llada)


def test_an_end_token_that_the_model_lacks_is_left_out(llada: Path) -> None:
    values = json.loads((llada / "config.json").read_text())
    small = {**values, "vocab_size": 370, "eos_token_id": None, "mask_token_id": 360}
    (llada / "config.json").write_text(json.dumps(small))
    assert Codec.load(llada).end_ids == ()


@pytest.mark.parametrize("number", [-1, 2**31, 10**9, 1.5, "3", None])
def test_ids_that_would_fill_the_memory(llada: Path, dream: Path, number: Any) -> None:
    """The tokenizers library makes a table as long as the largest id."""
    whole = json.loads((llada / "tokenizer.json").read_text())
    first = next(iter(whole["model"]["vocab"]))
    whole["model"]["vocab"][first] = number
    (llada / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        Codec.load(llada)
    for name in ("vocab.json", "added_tokens.json"):
        kept = (dream / name).read_text() if (dream / name).exists() else "{}"
        (dream / name).write_text(json.dumps(json.loads(kept) | {"zz": number}))
        with pytest.raises(ModelError, match="json"):
            Codec.load(dream)
        (dream / name).write_text(kept)
    (dream / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {str(number): {"content": "z"}}}))
    if number != "3":
        with pytest.raises(ModelError, match="'added_tokens_decoder' must be"):
            Codec.load(dream)


def test_truncation_and_padding_are_not_obeyed(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[PAD]": 2}, unk_token="a"))
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(pad_id=2, length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = read_tokenizer(tmp_path, None, {})
    assert (loaded.truncation, loaded.padding) == (None, None)
    assert loaded.encode("b").ids == [1]


def test_a_panic_of_the_tokenizer_is_an_error(llada: Path) -> None:
    """Rust's panics are no Exception in Python."""
    whole = json.loads((llada / "tokenizer.json").read_text())
    parts = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("gone", "here")]
    known = {"here": {"id": "here", "ids": [3], "tokens": ["here"]}}
    template = {"type": "TemplateProcessing", "single": parts, "pair": [], "special_tokens": known}
    (llada / "tokenizer.json").write_text(json.dumps(whole | {"post_processor": template}))
    with pytest.raises(ModelError, match=r"llada: the tokenizer cannot encode a single letter"):
        Codec.load(llada)
    regex = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
    (llada / "tokenizer.json").write_text(json.dumps(whole | {"pre_tokenizer": regex}))
    with pytest.raises(VocabularyError, match=r"the text cannot be encoded .*retry-limit"):
        Codec.load(llada).encode("a" * 100 + "!")


def test_only_errors_of_the_tokenizer_are_explained() -> None:
    with pytest.raises(KeyboardInterrupt), explain_errors("it fails"):
        raise KeyboardInterrupt
    with pytest.raises(ForetellError, match=r"^as it is$"), explain_errors("it fails"):
        raise ForetellError("as it is")


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_a_fingerprint_waits_for_no_pipe(llada: Path) -> None:
    before = model_hash(llada)
    os.mkfifo(llada / "chat_template_more.jinja")
    assert model_hash(llada) == before

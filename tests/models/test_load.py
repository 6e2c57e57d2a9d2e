"""Loading: what is refused and how, and that the weights stay in their file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretell.errors import ModelError, RequestError
from foretell.models.llada import save_llada
from foretell.models.load import load_model
from foretell.models.transformer import Transformer, TransformerConfig
from tests.models.checkpoints import (
    DREAM,
    LLADA,
    a_canvas,
    a_pass,
    all_logits,
    dream_tensors,
    llada_tensors,
    refused,
    write,
    write_dream,
    write_llada,
)

WTE = "model.transformer.wte.weight"
BLOCK = "model.transformer.blocks.1.q_proj.weight"


def reworked(folder: Path, **changes: Any) -> Path:
    """The checkpoint in `folder` with tensors added, replaced, or (None) taken away."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "no such folder")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    refused(tmp_path, "config.json", "missing")


@pytest.mark.parametrize(
    ("text", "part"), [("{", "not valid JSON"), ("[1]", "must be a JSON object"), ("\xff", "JSON")]
)
def test_a_config_that_is_no_object(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    refused(tmp_path, "config.json", part)


def test_an_unknown_architecture(tmp_path: Path) -> None:
    refused(
        write_llada(tmp_path, model_type="lladda"), "config.json", "'lladda'", "did you mean 'llada'", "dream, llada"
    )
    refused(write_llada(tmp_path, model_type=None), "config.json", "'model_type'", "dream, llada")


def test_a_missing_tensor(tmp_path: Path) -> None:
    refused(reworked(write_llada(tmp_path), **{BLOCK: None}), "model.safetensors", BLOCK, "missing")


def test_a_missing_head_when_it_is_not_tied(tmp_path: Path) -> None:
    refused(reworked(write_dream(tmp_path), **{"lm_head.weight": None}), "lm_head.weight", "missing")


def test_a_tensor_that_is_not_in_its_shard(tmp_path: Path) -> None:
    write_llada(tmp_path, shards=2)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    home = tmp_path / index["weight_map"][BLOCK]
    kept = {name: tensor.clone() for name, tensor in load_file(home).items() if name != BLOCK}
    save_file(kept, home)
    refused(tmp_path, home.name, BLOCK, "missing")


def test_a_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    tensors = llada_tensors(LLADA)
    del tensors[BLOCK]
    refused(write(tmp_path, LLADA, tensors, shards=2), "model.safetensors.index.json", BLOCK)


def test_a_shard_that_is_not_there(tmp_path: Path) -> None:
    write_llada(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path, "model-00002-of-00003.safetensors", "missing", "model.safetensors.index.json")


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "/elsewhere.safetensors", "weights.bin"])
def test_an_index_that_points_elsewhere(tmp_path: Path, shard: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {WTE: shard}}))
    refused(tmp_path, "model.safetensors.index.json", shard, WTE)


def test_a_shard_whose_name_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    index = {"weight_map": {WTE: f"{'x' * 300}.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(tmp_path, "missing", "model.safetensors.index.json", WTE)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": 3}'])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, "model.safetensors.index.json", "weight_map")


def test_unexpected_tensors(tmp_path: Path) -> None:
    extra = {f"model.transformer.blocks.{i}.surprise": torch.zeros(1) for i in range(7)}
    refused(reworked(write_llada(tmp_path), **extra), "model.safetensors", "blocks.0.surprise", "2 more")
    tensors = llada_tensors(LLADA) | extra
    refused(write(tmp_path / "shards", LLADA, tensors, shards=2), "blocks.0.surprise", "of-00002.safetensors")


def test_rotary_buffers_and_a_stored_tied_head_are_ignored(tmp_path: Path) -> None:
    buffer = {"model.transformer.blocks.0.rotary_emb.inv_freq": torch.zeros(4)}
    load_model(reworked(write_llada(tmp_path / "a"), **buffer))
    head = {"lm_head.weight": torch.zeros(50, 32)}
    model = load_model(reworked(write_dream(tmp_path / "b", tie_word_embeddings=True), **head))
    assert all_logits(model, a_pass(a_canvas())).std() > 0


def test_a_wrong_shape(tmp_path: Path) -> None:
    changed = {BLOCK: torch.zeros(32, 31)}
    refused(reworked(write_llada(tmp_path), **changed), "model.safetensors", BLOCK, "(32, 31)", "(32, 32)")


def test_a_head_may_end_before_the_mask(tmp_path: Path) -> None:
    """With the mask right after the vocabulary or inside a larger embedding; a head of any other size is refused."""
    wide = {"embedding_size": 53, "mask_token_id": 51}
    head = "model.transformer.ff_out.weight"
    folder = reworked(write_llada(tmp_path / "l", **wide), **{head: llada_tensors(LLADA)[head]})
    dream = dream_tensors(DREAM | {"vocab_size": 51}) | {"lm_head.weight": dream_tensors(DREAM)["lm_head.weight"]}
    other = write(tmp_path / "d", DREAM | {"mask_token_id": 50}, dream)
    for model, mask_id in ((load_model(folder), 51), (load_model(other), 50)):
        assert model.mask_id == mask_id
        assert all_logits(model, a_pass(a_canvas(vocab=51))).shape[-1] == 50
    loaded = load_model(folder)
    assert isinstance(loaded, Transformer)
    save_llada(loaded, tmp_path / "again", max_sequence_length=64)
    again = load_model(tmp_path / "again")
    assert isinstance(again, Transformer)
    assert again.config == loaded.config
    refused(reworked(folder, **{head: torch.zeros(49, 32)}), head, "(49, 32)", "(53, 32)")
    refused(write(tmp_path / "n", DREAM | {"mask_token_id": 50}, dream_tensors(DREAM)), "'mask_token_id' is 50", "49")


def test_a_quantised_tensor(tmp_path: Path) -> None:
    changed = {BLOCK: torch.zeros(32, 32, dtype=torch.int8)}
    refused(reworked(write_llada(tmp_path), **changed), "model.safetensors", BLOCK, "I8", "bfloat16")


@pytest.mark.parametrize("keep", [4, 600, -100])
def test_a_file_that_was_cut_short(tmp_path: Path, keep: int) -> None:
    file = write_llada(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(tmp_path, "model.safetensors", "cut short")


def test_an_embedding_that_is_no_matrix(tmp_path: Path) -> None:
    for shape in ((), (50,), (50, 32, 1)):
        refused(reworked(write_llada(tmp_path), **{WTE: torch.zeros(shape)}), WTE, str(shape), "must be a matrix")


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    refused(tmp_path, "neither model.safetensors nor")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    refused(tmp_path, "pytorch_model.bin", "never read", "safetensors")


@pytest.mark.parametrize("dtype", ["float32", torch.float32, "bfloat16", torch.bfloat16, "float16", "torch.float16"])
def test_dtypes_by_name_and_by_value(tmp_path: Path, dtype: Any) -> None:
    model = load_model(write_llada(tmp_path), dtype=dtype)
    assert isinstance(model, Transformer)
    assert {str(weight.dtype) for weight in model.parameters()} == {f"torch.{str(dtype).removeprefix('torch.')}"}


@pytest.mark.parametrize(
    ("stored", "loaded"), [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")]
)
def test_a_small_model_runs_in_float32(tmp_path: Path, stored: str, loaded: str) -> None:
    tensors = {name: tensor.to(getattr(torch, stored)) for name, tensor in llada_tensors(LLADA).items()}
    tensors["model.transformer.ln_f.weight"] = tensors["model.transformer.ln_f.weight"].float()
    model = load_model(write(tmp_path, LLADA, tensors))
    assert isinstance(model, Transformer)
    assert {weight.dtype for weight in model.parameters()} == {getattr(torch, loaded)}


def test_dtypes_and_devices_that_do_not_exist(tmp_path: Path) -> None:
    folder = write_llada(tmp_path)
    with pytest.raises(RequestError, match=r"unknown dtype 'float33'; did you mean 'float32'"):
        load_model(folder, dtype="float33")
    with pytest.raises(RequestError, match="'float64'"):
        load_model(folder, dtype=torch.float64)
    for device in ("gpu", "cuda:99"):
        with pytest.raises(RequestError, match=f"device '{device}' cannot be used"):
            load_model(folder, device=device)


def test_a_loaded_model_is_ready_to_decode(tmp_path: Path) -> None:
    model = load_model(write_llada(tmp_path, weight_tying=True), device=torch.device("cpu"))
    assert isinstance(model, Transformer)
    assert not model.training
    assert not any(weight.requires_grad or weight.is_meta for weight in model.parameters())
    assert model.head.weight is model.embed.weight


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_saved_loads_back(tmp_path: Path, tied: bool) -> None:
    model = Transformer(TransformerConfig(30, 29, 16, 2, 4, 2, 24, rope_theta=5e5, norm_eps=1e-6, tied=tied))
    save_llada(model, tmp_path / "new", eos_token_id=3)
    again = load_model(tmp_path / "new")
    assert isinstance(again, Transformer)
    assert again.config == model.config
    assert json.loads((tmp_path / "new/config.json").read_text())["eos_token_id"] == 3
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["config.json", "model.safetensors"]
    assert len({path.stat().st_mode for path in (tmp_path / "new").iterdir()}) == 1, "readable by the same people"
    inputs = a_pass(a_canvas(vocab=30))
    assert torch.equal(all_logits(model, inputs), all_logits(again, inputs))


def test_what_llada_does_not_have_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="qkv_bias"):
        save_llada(Transformer(TransformerConfig(30, 29, 16, 1, 2, 2, 24, qkv_bias=True)), tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_weights_stay_in_their_file(tmp_path: Path, kind: str) -> None:
    tensors = {name: tensor.to(getattr(torch, kind)) for name, tensor in dream_tensors(DREAM).items()}
    model: Any = load_model(write(tmp_path, DREAM, tensors, shards=2), dtype=kind)
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps if str(tmp_path) in line]
    for weight in model.inner.parameters():
        assert any(start <= weight.data_ptr() < stop for start, stop in ranges)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_needs_no_second_copy(tmp_path: Path) -> None:
    """A file of 200 MB, of which a load touches almost nothing; a copy would show as 200 MB of private memory."""
    model = Transformer(TransformerConfig(50_000, 1, 512, 1, 8, 8, 512))
    save_llada(model, tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size > 200e6
    script = (
        "import sys, re; from foretell.models.load import load_model\n"
        "used = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "before = used(); model = load_model(sys.argv[1]); opened = used() - before\n"
        "total = sum(float(weight.sum()) for weight in model.parameters()); touched = used() - before\n"
        "print(opened, touched, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    opened, touched, transformers = done.stdout.split()
    assert int(opened) < 0.2 * size
    assert int(touched) < 1.2 * size
    assert transformers == "False"

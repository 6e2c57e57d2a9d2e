"""The shape of a model without its weights: known models, folders, and config.json alone from the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretell
from foretell.errors import ModelError, RequestError
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.plan.shapes import KNOWN, PUBLISHED, ModelShape, find_shape
from tests.models.hub_server import Hub, serve_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with serve_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        address = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


def test_published_models_have_their_published_sizes() -> None:
    llada, dream = find_shape("GSAI-ML/LLaDA-8B-Instruct"), find_shape("Dream-7B")
    assert llada.parameters == 8_015_581_184
    assert dream.parameters == 7_615_616_512
    assert llada.layer_weights == 32 * (4 * 4096**2 + 3 * 4096 * 12288)
    assert llada.head_weights == 4096 * 126_464
    assert {find_shape(name).config for name in PUBLISHED} == {find_shape(name).config for name in KNOWN}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_those_of_the_network(bias: bool, tied: bool) -> None:
    config = TransformerConfig(50, 3, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, qkv_bias=bias, tied=tied)
    shape = ModelShape("random", config, lambda model: model)
    network = Transformer(config)
    assert shape.parameters == sum(weight.numel() for weight in network.parameters())
    matrices = [one.weight for one in network.blocks.modules() if isinstance(one, type(network.head))]
    assert shape.layer_weights == sum(weight.numel() for weight in matrices)


def test_a_folder_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["dream-7b"]))
    assert find_shape(str(tmp_path)).config == find_shape("dream-7b").config
    engine = foretell.load("tiny")
    assert find_shape("tiny").parameters == engine.size


def test_only_config_json_is_downloaded(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(KNOWN["llada-8b"] | {"n_layers": 3}))
    hub.add("lab/model", tmp_path / "model", more={"model.safetensors": b"not read"})
    assert find_shape("lab/model").config.layers == 3
    assert find_shape("lab/model@main").config.layers == 3
    assert all("config.json" in line for line in hub.asked)
    hub.add("lab/empty", tmp_path, more={"model.safetensors": b""})
    hub.models["lab/empty", "main"].pop("config.json", None)
    with pytest.raises(ModelError, match="lab/empty on the hub has no config"):
        find_shape("lab/empty")
    with pytest.raises(ModelError, match="neither a folder 'lab/none' here nor a model"):
        find_shape("lab/none")


def test_what_cannot_be_planned_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
    with pytest.raises(ModelError, match="only LLaDA's and Dream's networks"):
        find_shape(str(tmp_path))
    with pytest.raises(ModelError, match="did you mean 'llada-8b'"):
        find_shape("llada-8")
    with pytest.raises(RequestError, match="a revision is for models on the hub"):
        find_shape("tiny", "main")

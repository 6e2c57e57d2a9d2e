"""The script on antibody models, with small random ones in the formats of the real packages."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import foretell
from foretell.errors import RequestError

RUNS = Path(__file__).parents[2] / "runs"
WIDTH, LAYERS, POSITIONS, WORDS = 16, 2, 40, 25
SEQUENCES = ("QVQLVQSGAEVKKPGASVKV", "EVQLLESGGGLVQPGGSLRL", "QVKLQESGAELARPGASVKL", "DIQMTQ")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(str(RUNS))
    return importlib.import_module("real_models"), importlib.import_module("antibody_models")


def linear(name: str, out: int, inside: int) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.randn(out, inside) * 0.5, f"{name}.bias": torch.randn(out)}


def norm(name: str) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.rand(WIDTH) + 0.5, f"{name}.bias": torch.randn(WIDTH)}


def fairseq() -> dict[str, Any]:
    """A RoBERTa as fairseq stores it."""
    torch.manual_seed(0)
    inside = "decoder.sentence_encoder"
    model = {
        f"{inside}.embed_tokens.weight": torch.randn(WORDS, WIDTH),
        f"{inside}.embed_positions.weight": torch.randn(POSITIONS + 2, WIDTH),
        **norm(f"{inside}.emb_layer_norm"),
        **linear("decoder.lm_head.dense", WIDTH, WIDTH),
        **norm("decoder.lm_head.layer_norm"),
        "decoder.lm_head.bias": torch.randn(WORDS),
    }
    model["decoder.lm_head.weight"] = model[f"{inside}.embed_tokens.weight"]
    for layer in range(LAYERS):
        block = f"{inside}.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            model |= linear(f"{block}.self_attn.{part}", WIDTH, WIDTH)
        model |= linear(f"{block}.fc1", 24, WIDTH) | linear(f"{block}.fc2", WIDTH, 24)
        model |= norm(f"{block}.self_attn_layer_norm") | norm(f"{block}.final_layer_norm")
    made = argparse.Namespace(
        encoder_layers=LAYERS, encoder_attention_heads=2, encoder_ffn_embed_dim=24, activation_fn="gelu"
    )
    return {"model": model, "args": made}


def bert() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A BERT with AntiBERTy's other heads, as its package stores it."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(1)
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    network: Any = BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=POSITIONS, **shape))
    tensors = network.state_dict() | linear("cls.species", 6, WIDTH) | {"bert.embeddings.position_ids": torch.zeros(1)}
    return network.config.to_dict() | {"architectures": ["AntiBERTy"]}, tensors


@pytest.fixture
def wheels(scripts: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the packages, which are then not downloaded."""
    config, tensors = bert()
    torch.save(fairseq(), tmp_path / "checkpoint_vh.pt")
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(scripts[1], "_extract", lambda _, member, __: tmp_path / Path(member).name)


def test_every_tensor_of_a_package_finds_its_place(scripts: tuple[Any, Any], wheels: None, tmp_path: Path) -> None:
    for name in ("sapiens-vh", "antiberty"):
        engine = foretell.load(scripts[1].find_model(name, None, tmp_path / "work"))
        done = engine.fill("QVQ[MASK*3]VQ[MASK]GAE", recipe="threshold")
        assert done.text == f"QVQ{done.fills[0]}VQ{done.fills[1]}GAE"
        assert [len(fill) for fill in done.fills] == [3, 1]
        again = scripts[1].find_model(name, tmp_path / "work", tmp_path / "elsewhere")
        assert again == tmp_path / "work" / name
    with pytest.raises(RequestError, match="unknown model 'esm'"):
        scripts[1].find_model("esm", None, tmp_path)


def test_the_page(
    scripts: tuple[Any, Any], wheels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "antibodies").mkdir()
    rows = [f"name\theavy\tlight\nA\t{SEQUENCES[0]}\tX", *(f"B\t{one}\tX" for one in SEQUENCES[1:])]
    (tmp_path / "antibodies" / "therapeutic.tsv").write_text("\n".join(rows))
    script = scripts[0]
    monkeypatch.setattr(script, "LENGTHS", {"heavy": (10, 30)})
    recipes = ("full", "swift", "fast-dllm", "threshold transfer.value=0.5", "full steps=4")
    monkeypatch.setattr(script, "RECIPES", recipes)
    words = ["--data", tmp_path, "--only", "sapiens-vh", "--work", tmp_path / "work", "--out", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["real_models.py", *map(str, words)])
    script.main()
    page = (tmp_path / "out" / "real_models.md").read_text()
    assert "## sapiens-vh, heavy chains, 50% masked, n = 3" in page, "one sequence is too short"
    assert "`fast-dllm`" not in page, "these models have no cache"
    found = json.loads((tmp_path / "out" / "real_models.json").read_text())["models"]
    full, *_, steps = found["sapiens-vh, heavy chains, 90% masked"]["rows"]
    assert (full["changed"][0], full["same"][0], full["speedup"], full["forwards"]) == (0, 1, 1, 18)
    assert (steps["recipe"], steps["forwards"]) == ("full steps=4", 4)
    monkeypatch.setattr(script, "load", None)  # everything is there
    script.main()
    assert (tmp_path / "out" / "real_models.md").read_text() == page
    capsys.readouterr()


def test_masks_are_the_same_for_every_recipe(scripts: tuple[Any, Any]) -> None:
    one, same = (scripts[0].mask_sequence(SEQUENCES[0], 0.5) for _ in range(2))
    assert one == same
    assert one.text.count("[MASK]") == len(one.residues) == 10
    assert scripts[0].mask_sequence(SEQUENCES[1], 0.5).text != one.text


def test_shares_are_of_residues(scripts: tuple[Any, Any]) -> None:
    share, low, high = scripts[0].share_of([("AB", "AC"), ("DDDD", "DDDD")], equal=True)
    assert share == 5 / 6
    assert low < share < high
    assert scripts[0].share_of([("AB", "AC"), ("DDDD", "DDDD")], equal=False)[0] == 1 / 6


def test_the_data_have_to_be_named(scripts: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORETELL_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["real_models.py"])
    with pytest.raises(RequestError, match="FORETELL_DATA"):
        scripts[0].main()

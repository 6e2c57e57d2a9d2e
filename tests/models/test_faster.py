"""int8 weights and torch.compile: the same network nearly, and clear words where they cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import foretell
from foretell.errors import ModelError, RequestError
from foretell.models.faster import compile_blocks, quantize_weights
from foretell.models.transformer import Transformer
from tests.helpers import logits_of, network

CANVAS = [5, 6, 7, 8, 0, 0, 0, 0]


def test_int8_weights_are_nearly_the_same() -> None:
    pytest.importorskip("torchao", reason="int8 weights need torchao")
    model = network(3).float()
    before = logits_of(model, CANVAS, 4)
    quantize_weights(model)
    after = logits_of(model, CANVAS, 4)
    assert not torch.equal(before, after)
    assert (before - after).abs().max() < 0.1 * before.abs().max()


def test_int8_engine_decodes(checkpoint: Path) -> None:
    pytest.importorskip("torchao", reason="int8 weights need torchao")
    engine = foretell.load(checkpoint, quantize="int8")
    done = engine.generate(["Tom has 3 pens.", "Ann has 3 pens."], max_new_tokens=8, recipe="prophet cache=dual")
    assert [len(one.tokens) for one in done] == [8, 8]


def test_a_broken_torchao_is_an_error(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ModelError, match="torchao is installed, but cannot be imported"):
        foretell.load(checkpoint, quantize="int8")


def test_an_unknown_kind_is_named(checkpoint: Path) -> None:
    with pytest.raises(RequestError, match=r"unknown quantize 'int9'; did you mean 'int8'\?"):
        foretell.load(checkpoint, quantize="int9")


@pytest.mark.parametrize("faster", [quantize_weights, compile_blocks])
def test_only_our_own_network(faster: object) -> None:
    with pytest.raises(ModelError, match="is for LLaDA and Dream checkpoints; this is a Linear"):
        faster(torch.nn.Linear(2, 2))  # type: ignore[operator]


def test_both_halves_of_every_block_are_compiled(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch makes of them is the slow test's question."""
    calls: list[str] = []

    def translated(function: object, **options: object) -> object:
        assert options == {"dynamic": True}

        def called(*inputs: object) -> object:
            calls.append(function.__name__)  # type: ignore[attr-defined]
            return function(*inputs)  # type: ignore[operator]

        return called

    plain = foretell.load(checkpoint).generate("Tom has 3 pens.", max_new_tokens=4).tokens
    monkeypatch.setattr(torch, "compile", translated)
    engine = foretell.load(checkpoint, compile=True)
    assert engine.generate("Tom has 3 pens.", max_new_tokens=4).tokens == plain
    assert isinstance(engine.model, Transformer)
    assert calls[:4] == ["enter", "leave"] * 2
    assert len(calls) == 4 * 4


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("default")  # torch's compiler has its own
def test_a_compiled_network_decodes_the_same(checkpoint: Path) -> None:
    plain, compiled = foretell.load(checkpoint), foretell.load(checkpoint, compile=True)
    prompts = ["Tom has 3 pens.", "Ann has 3 pens. Tom has 4 pens."]
    for recipe in ("full", "fast-dllm"):
        texts = [engine.generate(prompts, max_new_tokens=8, recipe=recipe) for engine in (plain, compiled)]
        assert [one.tokens for one in texts[0]] == [one.tokens for one in texts[1]]

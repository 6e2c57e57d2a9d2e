"""LLaDA and Dream checkpoints give the logits of transformers' Llama and Qwen2 run without a causal mask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from foretell.loop.protocols import Inputs
from foretell.loop.wrappers import Shifted
from foretell.models.load import load_model
from foretell.models.packed import pack_weights
from foretell.models.transformer import Transformer
from tests.helpers import PLAIN_AND_PACKED
from tests.models.checkpoints import (
    DREAM,
    LLADA,
    a_canvas,
    a_pass,
    all_logits,
    dream_tensors,
    llada_tensors,
    write_dream,
    write_llada,
)

PADDINGS = [None, (0, 3, 7)]
LLAMA_NAMES = {
    "wte": "embed_tokens",
    "ln_f": "norm",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def as_llama(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        if name == "model.transformer.ff_out.weight":
            renamed["lm_head.weight"] = tensor
            continue
        leaf = name.split(".")[-2]
        renamed[
            re.sub(
                rf"{leaf}\.weight$",
                f"{LLAMA_NAMES[leaf]}.weight",
                name.replace("transformer.", "").replace("blocks", "layers"),
            )
        ] = tensor
    return renamed


def llama(config: dict[str, Any]) -> LlamaForCausalLM:
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config["embedding_size"] or config["vocab_size"],
            hidden_size=config["d_model"],
            intermediate_size=config["mlp_hidden_size"] or config["mlp_ratio"] * config["d_model"],
            num_hidden_layers=config["n_layers"],
            num_attention_heads=config["n_heads"],
            num_key_value_heads=config["n_kv_heads"] or config["n_heads"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=config["rope_theta"],
            tie_word_embeddings=config["weight_tying"],
        )
    )
    return filled(network, as_llama(llada_tensors(config)))


def qwen2(config: dict[str, Any]) -> Qwen2ForCausalLM:
    keys = (key for key in config if key not in ("model_type", "architectures", "mask_token_id", "eos_token_id"))
    return filled(Qwen2ForCausalLM(Qwen2Config(**{key: config[key] for key in keys})), dream_tensors(config))


def filled(network: Any, tensors: dict[str, Tensor]) -> Any:
    missing, unexpected = network.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    network.tie_weights()
    return network.eval()


@torch.no_grad()
def bidirectional(network: Any, inputs: Inputs) -> Tensor:
    rows, length = inputs.canvas.shape
    mask = torch.zeros(rows, 1, length, length).masked_fill(~inputs.attend[:, None, None, :], float("-inf"))
    logits: Tensor = network(
        input_ids=inputs.canvas, attention_mask=mask, position_ids=inputs.positions, use_cache=False
    ).logits
    return logits


def assert_close(ours: Tensor, theirs: Tensor, keys: Tensor) -> None:
    assert theirs[keys].std() > 0.3, "logits that say nothing would agree by themselves"
    torch.testing.assert_close(ours[keys], theirs[keys], atol=1e-4, rtol=0)


@PLAIN_AND_PACKED
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_kv_heads": None, "mlp_hidden_size": None},
        {"n_kv_heads": 2},
        {"weight_tying": True},
        {"embedding_size": 64},
        {"embedding_size": None, "rope_theta": 10000.0, "rms_norm_eps": 1e-3},
    ],
    ids=["plain", "defaults", "grouped", "tied", "padded-vocabulary", "other-constants"],
)
def test_llada_is_a_bidirectional_llama(
    tmp_path: Path, changes: dict[str, Any], padding: tuple[int, ...] | None, packed: bool
) -> None:
    inputs, model = a_pass(a_canvas(), padding), load_model(write_llada(tmp_path, **changes))
    pack_weights(model, packed)
    ours = all_logits(model, inputs)
    assert_close(ours, bidirectional(llama({**LLADA, **changes}), inputs), inputs.attend)


@PLAIN_AND_PACKED
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}, {"tie_word_embeddings": True}])
def test_dream_is_a_bidirectional_shifted_qwen2(
    tmp_path: Path, changes: dict[str, Any], padding: tuple[int, ...] | None, packed: bool
) -> None:
    inputs, model = a_pass(a_canvas(), padding), load_model(write_dream(tmp_path, **changes))
    assert isinstance(model, Shifted)
    pack_weights(model.inner, packed)
    ours = all_logits(model, inputs)
    plain = bidirectional(qwen2({**DREAM, **changes}), inputs)
    shifted = torch.cat([plain[:, :1], plain[:, :-1]], dim=1)
    for row, pads in enumerate(padding or (0, 0, 0)):
        shifted[row, pads] = plain[row, pads]
    assert_close(ours, shifted, inputs.attend)


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_are_the_same_model(tmp_path: Path, shards: int) -> None:
    inputs = a_pass(a_canvas())
    for kind in (write_llada, write_dream):
        whole = all_logits(load_model(kind(tmp_path / f"{kind.__name__}-whole")), inputs)
        parts = all_logits(load_model(kind(tmp_path / f"{kind.__name__}-parts", shards=shards)), inputs)
        assert torch.equal(whole, parts)


def test_the_published_constants_change_the_result(tmp_path: Path) -> None:
    inputs = a_pass(a_canvas())
    theta = (10000.0, 500000.0)
    a, b = (all_logits(load_model(write_llada(tmp_path / str(t), rope_theta=t)), inputs) for t in theta)
    assert not torch.allclose(a, b)


def test_a_model_type_is_found_in_any_case_and_dream_is_shifted(tmp_path: Path) -> None:
    for spelling in ("Dream", "dream", "DREAM"):
        assert isinstance(load_model(write_dream(tmp_path / spelling, model_type=spelling)), Shifted)
    assert isinstance(load_model(write_llada(tmp_path / "l", model_type="LLaDA")), Transformer)


def test_newer_configs_keep_the_rotary_base_among_rope_parameters(tmp_path: Path) -> None:
    new = write_dream(tmp_path / "new", rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    inputs = a_pass(a_canvas())
    assert torch.equal(
        all_logits(load_model(new), inputs), all_logits(load_model(write_dream(tmp_path / "old")), inputs)
    )

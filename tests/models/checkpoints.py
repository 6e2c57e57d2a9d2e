"""Small random checkpoints in exactly the published formats, and passes over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foretell.errors import ModelError
from foretell.loop.protocols import Denoiser, Inputs
from foretell.models.load import load_model

LLADA = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "block_type": "llama",
    "block_group_size": 1,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 4,
    "mlp_hidden_size": 48,
    "mlp_ratio": 4,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_theta": 500000.0,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "weight_tying": False,
    "max_sequence_length": 64,
    "vocab_size": 50,
    "embedding_size": 50,
    "eos_token_id": 48,
    "pad_token_id": 48,
    "mask_token_id": 49,
}
DREAM = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 50,
    "eos_token_id": 48,
    "mask_token_id": 49,
}


def llada_tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    dim, heads = config["d_model"], config["n_heads"]
    kv = (config["n_kv_heads"] or heads) * dim // heads
    hidden = config["mlp_hidden_size"] or config["mlp_ratio"] * dim
    rows = config["embedding_size"] or config["vocab_size"]
    shapes = {"wte.weight": (rows, dim), "ln_f.weight": (dim,), "ff_out.weight": (rows, dim)}
    if config["weight_tying"]:
        del shapes["ff_out.weight"]
    for i in range(config["n_layers"]):
        inside = {
            "attn_norm": (dim,),
            "ff_norm": (dim,),
            "q_proj": (dim, dim),
            "k_proj": (kv, dim),
            "v_proj": (kv, dim),
        }
        inside |= {"attn_out": (dim, dim), "ff_proj": (hidden, dim), "up_proj": (hidden, dim), "ff_out": (dim, hidden)}
        shapes |= {f"blocks.{i}.{name}.weight": shape for name, shape in inside.items()}
    return _filled({f"model.transformer.{name}": shape for name, shape in shapes.items()})


def dream_tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    dim, hidden = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * dim // config["num_attention_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], dim)}
    shapes |= {"model.norm.weight": (dim,), "lm_head.weight": (config["vocab_size"], dim)}
    if config["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    for i in range(config["num_hidden_layers"]):
        inside: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (dim,),
            "post_attention_layernorm.weight": (dim,),
        }
        for part, size in (("q", dim), ("k", kv), ("v", kv)):
            inside |= {f"self_attn.{part}_proj.weight": (size, dim), f"self_attn.{part}_proj.bias": (size,)}
        inside |= {"self_attn.o_proj.weight": (dim, dim), "mlp.down_proj.weight": (dim, hidden)}
        inside |= {f"mlp.{part}_proj.weight": (hidden, dim) for part in ("gate", "up")}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in inside.items()}
    return _filled(shapes)


def _filled(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(shape, generator=noise) * 0.2 + (1.0 if "norm" in name or "ln_f" in name else 0.0)
        for name, shape in shapes.items()
    }


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    homes: dict[str, str] = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensor for at, (name, tensor) in enumerate(tensors.items()) if at % shards == index}
        save_file(part, folder / file, metadata={"format": "pt"})
        homes |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return folder


def write_llada(folder: Path, shards: int = 1, **changes: Any) -> Path:
    config = {**LLADA, **changes}
    return write(folder, config, llada_tensors(config), shards)


def write_dream(folder: Path, shards: int = 1, **changes: Any) -> Path:
    config = {**DREAM, **changes}
    return write(folder, config, dream_tensors(config), shards)


def a_pass(canvas: Tensor, padding: tuple[int, ...] | None = None, prompt: int = 0) -> Inputs:
    """Every column of `canvas` [b, L], with `padding` blank columns before each row, all read."""
    rows, length = canvas.shape
    columns = torch.arange(length).expand(rows, length)
    pads = torch.tensor(padding or (0,) * rows)[:, None]
    return Inputs(canvas, (columns - pads).clamp(min=0), columns >= pads, columns, columns, None, prompt)


def a_canvas(rows: int = 3, length: int = 12, vocab: int = 50, seed: int = 0) -> Tensor:
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def all_logits(model: Denoiser, inputs: Inputs) -> Tensor:
    """[b, w, V]"""
    readout = model(inputs)
    rows, width = inputs.wanted.shape
    row, at = torch.arange(rows).repeat_interleave(width), torch.arange(width).repeat(rows)
    return readout(row, at).view(rows, width, -1)


def refused(folder: Path, *parts: str) -> None:
    """Loading `folder` is a `ModelError` whose message has all `parts`."""
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    for part in parts:
        assert part in str(caught.value)

"""LLaDA checkpoints (8B-Base, 8B-Instruct, 1.5): read and write their config.json and tensor names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from foretell.errors import ModelError
from foretell.loop.protocols import Denoiser
from foretell.models.family import DEEPEST, EPSILONS, LARGEST, THETAS, Family, Settings, mask_token
from foretell.models.transformer import UNBOUNDED, Transformer, TransformerConfig
from foretell.storage import replace_file

_VOCAB_SIZE, _MASK_ID = 126_464, 126_336  # of the published models

# Settings of this family that our network supports only at these values. The first value is the key's default.
_FIXED: dict[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "block_group_size": (1,),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "attention_layer_norm": (False, None),
    "input_emb_norm": (False, None),
    "alibi": (False, None),
    "rope": (True,),
    "rope_scaling": (None,),
    "include_bias": (False, None),
    "include_qkv_bias": (False, None),
    "bias_for_layer_norm": (False, None),
    "scale_logits": (False, None),
    "quantization_config": (None,),
}


def configure(settings: Settings) -> TransformerConfig:
    """Translate a config.json. Raises ModelError for settings that the network does not support."""
    for key, allowed in _FIXED.items():
        settings.require(key, *allowed)
    dim, heads = settings.count("d_model"), settings.count("n_heads")
    if dim % (2 * heads):
        raise settings.problem("n_heads", f"such that d_model ({dim}) splits into heads of an even size")
    kv_heads = settings.count("n_kv_heads", 1 if settings.flag("multi_query_attention") else heads)
    if heads % kv_heads:
        raise settings.problem("n_kv_heads", f"a divisor of n_heads ({heads})")
    vocab_size = settings.count("vocab_size")
    rows = settings.count("embedding_size", vocab_size)
    if rows < vocab_size:
        raise settings.problem("embedding_size", f"at least vocab_size ({vocab_size})")
    mask_id = mask_token(settings, rows, documented=(_VOCAB_SIZE, _MASK_ID))
    return TransformerConfig(
        vocab_size=max(rows, mask_id + 1),
        mask_id=mask_id,
        dim=dim,
        layers=settings.count("n_layers", most=DEEPEST),
        heads=heads,
        kv_heads=kv_heads,
        hidden=_hidden(settings, dim),
        rope_theta=settings.number("rope_theta", 10_000.0, *THETAS),
        norm_eps=settings.number("rms_norm_eps", 1e-5, *EPSILONS),
        tied=settings.flag("weight_tying"),
        context=settings.count("max_sequence_length", UNBOUNDED),
    )


def _hidden(settings: Settings, dim: int) -> int:
    if settings.values.get("mlp_hidden_size") is not None:
        return settings.count("mlp_hidden_size")
    return int(settings.number("mlp_ratio", 4, 1 / dim, LARGEST / dim) * dim)


def _as_is(model: Denoiser) -> Denoiser:
    return model


LLADA = Family(
    name="llada",
    configure=configure,
    wrap=_as_is,
    outer={
        "embed": "model.transformer.wte",
        "norm": "model.transformer.ln_f",
        "head": "model.transformer.ff_out",
    },
    block="model.transformer.blocks.{}",
    inner={
        "attn_norm": "attn_norm",
        "attn.q": "q_proj",
        "attn.k": "k_proj",
        "attn.v": "v_proj",
        "attn.out": "attn_out",
        "mlp_norm": "ff_norm",
        "gate": "ff_proj",
        "up": "up_proj",
        "down": "ff_out",
    },
    ignored=(".inv_freq",),
    vocab_size=_VOCAB_SIZE,
    special={
        "<|startoftext|>": 126080,
        "<|endoftext|>": 126081,
        "<|mdm_mask|>": _MASK_ID,
        "<|start_header_id|>": 126346,
        "<|end_header_id|>": 126347,
        "<|eot_id|>": 126348,
    },
    mask="<|mdm_mask|>",
    models="LLaDA 8B Base and Instruct, LLaDA 1.5, and models trained with `foretell train`",
    checked="the logits equal those of transformers' Llama without a causal mask, with random weights; the published "
    "weights were never run",
    ends=("<|endoftext|>", "<|eot_id|>"),
    chat_template=(
        "<|startoftext|>"
        "{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }}<|eot_id|>"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
)


def save_llada(model: Transformer, folder: Path | str, **extra: Any) -> None:
    """Write `model` as a LLaDA checkpoint, config.json and model.safetensors, that `load_model` reads back.

    `extra` are further keys of config.json, such as eos_token_id and max_sequence_length. Raises ModelError for
    a network with query and key biases, which LLaDA does not have.
    """
    config = model.config
    if config.qkv_bias:
        raise ModelError("a network with qkv_bias cannot be written as a LLaDA checkpoint, which has no biases")
    weights = {
        LLADA.checkpoint_name(name): weight.detach().contiguous()
        for name, weight in model.named_parameters()  # a tied head is listed once, as the embedding
    }
    values = {
        "architectures": ["LLaDAModelLM"],
        "model_type": LLADA.name,
        **{key: allowed[0] for key, allowed in _FIXED.items() if allowed[0] is not None},
        "d_model": config.dim,
        "n_layers": config.layers,
        "n_heads": config.heads,
        "n_kv_heads": config.kv_heads,
        "mlp_hidden_size": config.hidden,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "weight_tying": config.tied,
        "vocab_size": config.outputs or config.vocab_size,
        "embedding_size": config.vocab_size,
        "mask_token_id": config.mask_id,
        **extra,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "config.json"
    settings.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    with replace_file(folder / "model.safetensors") as part:
        save_file(weights, part, metadata={"format": "pt"})
        part.chmod(settings.stat().st_mode)  # safetensors makes files that only their owner may read

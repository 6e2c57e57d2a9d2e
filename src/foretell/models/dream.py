"""Dream checkpoints (v0 Base and Instruct, DiffuCoder, Dream-Coder): Qwen2's shape and names, with a shifted head."""

from __future__ import annotations

from typing import Any

from foretell.loop.wrappers import Shifted
from foretell.models.family import DEEPEST, EPSILONS, THETAS, Family, Settings, mask_token
from foretell.models.transformer import UNBOUNDED, TransformerConfig

_VOCAB_SIZE, _MASK_ID = 152_064, 151_666  # of the published models

_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
    "quantization_config": (None,),
}


# How Qwen2 cuts text into words before byte pairs are merged: contractions, letters after at most one
# other character, single digits, punctuation, newlines, blanks.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def configure(settings: Settings) -> TransformerConfig:
    """Translate a config.json. Raises ModelError for settings that the network does not support."""
    for key, allowed in _FIXED.items():
        settings.require(key, *allowed)
    dim, heads = settings.count("hidden_size"), settings.count("num_attention_heads")
    if dim % (2 * heads):
        raise settings.problem(
            "num_attention_heads", f"such that hidden_size ({dim}) splits into heads of an even size"
        )
    if settings.count("head_dim", dim // heads) != dim // heads:
        raise settings.problem("head_dim", f"hidden_size / num_attention_heads ({dim // heads})")
    kv_heads = settings.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise settings.problem("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    vocab_size = settings.count("vocab_size")
    mask_id = mask_token(settings, vocab_size, documented=(_VOCAB_SIZE, _MASK_ID))
    return TransformerConfig(
        vocab_size=max(vocab_size, mask_id + 1),
        mask_id=mask_id,
        dim=dim,
        layers=settings.count("num_hidden_layers", most=DEEPEST),
        heads=heads,
        kv_heads=kv_heads,
        hidden=settings.count("intermediate_size"),
        rope_theta=_rope_theta(settings),
        norm_eps=settings.number("rms_norm_eps", 1e-6, *EPSILONS),
        qkv_bias=True,
        tied=settings.flag("tie_word_embeddings"),
        context=settings.count("max_position_embeddings", UNBOUNDED),
    )


def _rope_theta(settings: Settings) -> float:
    """Return the rotary base, from its own key or from `rope_parameters`, where newer configs have it."""
    nested = settings.values.get("rope_parameters")
    if nested is None:
        return settings.number("rope_theta", 10_000.0, *THETAS)
    if not isinstance(nested, dict) or nested.get("rope_type", "default") != "default":
        raise settings.problem("rope_parameters", 'an object whose rope_type is "default"')
    return Settings(settings.file, {**settings.values, **nested}).number("rope_theta", 10_000.0, *THETAS)


DREAM = Family(
    name="dream",
    configure=configure,
    wrap=Shifted,
    outer={"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
    block="model.layers.{}",
    inner={
        "attn_norm": "input_layernorm",
        "attn.q": "self_attn.q_proj",
        "attn.k": "self_attn.k_proj",
        "attn.v": "self_attn.v_proj",
        "attn.out": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
    ignored=(".inv_freq",),
    vocab_size=_VOCAB_SIZE,
    special={
        "<|endoftext|>": 151643,
        "<|im_start|>": 151644,
        "<|im_end|>": 151645,
        "<|mask|>": _MASK_ID,
    },
    mask="<|mask|>",
    models="Dream 7B Base and Instruct, DiffuCoder, Dream-Coder",
    checked="the logits equal those of transformers' Qwen2 without a causal mask, with random weights; the published "
    "weights were never run",
    ends=("<|endoftext|>", "<|im_end|>"),
    words=_WORDS,
    chat_template=(
        "{% if messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
        "{% endif %}"
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
)

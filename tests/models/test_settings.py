"""config.json: what is refused, by key and value, and which mask id is assumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.models.family import Settings
from foretell.models.load import load_model
from tests.models.checkpoints import DREAM, LLADA, refused, write, write_dream, write_llada

WTE = "model.transformer.wte.weight"


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("block_type", "sequential", '"llama"'),
        ("layer_norm_type", "default", '"rms"'),
        ("activation_type", "swiglu", '"silu"'),
        ("alibi", True, "false"),
        ("include_bias", True, "false"),
        ("include_qkv_bias", True, "false"),
        ("rope", False, "true"),
        ("rope_scaling", {"type": "linear"}, "null"),
        ("scale_logits", True, "false"),
        ("d_model", None, "whole number"),
        ("d_model", 34, "whole number"),
        ("n_layers", "two", "whole number"),
        ("n_layers", True, "whole number"),
        ("n_heads", 5, "even size"),
        ("n_kv_heads", 3, "divisor"),
        ("embedding_size", 49, "at least vocab_size"),
        ("rope_theta", -1, "from 1 to 1e+30"),
        ("weight_tying", "yes", "true or false"),
        ("mask_token_id", 50, "0 to 49"),
        ("quantization_config", {"bits": 4}, "null"),
        ("n_layers", 10**9, "from 1 to 1024"),
        ("n_layers", 0, "from 1 to 1024"),
        ("d_model", 10**30, "from 1 to 16777216"),
        ("n_heads", 2**31, "from 1 to 16777216"),
        ("mlp_hidden_size", 10**9, "from 1 to 16777216"),
        ("vocab_size", 10**9, "from 1 to 16777216"),
        ("embedding_size", 10**9, "from 1 to 16777216"),
        ("max_sequence_length", -5, "from 1 to 16777216"),
        ("rope_theta", float("nan"), "from 1 to 1e+30"),
        ("rope_theta", float("inf"), "from 1 to 1e+30"),
        ("rope_theta", 1e-30, "from 1 to 1e+30"),
        ("rms_norm_eps", float("nan"), "from 1e-30 to 1"),
        ("rms_norm_eps", 0, "from 1e-30 to 1"),
        ("rms_norm_eps", "1e-5", "from 1e-30 to 1"),
        ("architectures", "LLaDAModelLM", "a list of names"),
        ("architectures", [3], "a list of names"),
    ],
)
def test_llada_settings_that_cannot_be_run(tmp_path: Path, key: str, value: Any, allowed: str) -> None:
    write(tmp_path, {**LLADA, key: value}, {WTE: torch.zeros(1, 1)})
    named = "n_heads" if value == 34 else key
    refused(tmp_path, "config.json", f"'{named}'", "even size" if value == 34 else allowed)
    if value is not None and value != 34:
        refused(tmp_path, json.dumps(value))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("hidden_act", "gelu", '"silu"'),
        ("rope_scaling", {"type": "yarn"}, "null"),
        ("rope_parameters", {"rope_type": "yarn"}, "default"),
        ("use_sliding_window", True, "false"),
        ("head_dim", 16, "(8)"),
        ("num_key_value_heads", 3, "divisor"),
        ("num_attention_heads", 5, "even size"),
        ("num_hidden_layers", 10**9, "from 1 to 1024"),
        ("rope_theta", float("nan"), "from 1 to 1e+30"),
        ("rms_norm_eps", float("-inf"), "from 1e-30 to 1"),
    ],
)
def test_dream_settings_that_cannot_be_run(tmp_path: Path, key: str, value: Any, allowed: str) -> None:
    write(tmp_path, {**DREAM, key: value}, {WTE: torch.zeros(1, 1)})
    refused(tmp_path, "config.json", f"'{key}'", json.dumps(value), allowed)


@pytest.mark.parametrize("ratio", [float("inf"), 1e300, float("nan"), 1e-9])
def test_a_ratio_cannot_make_a_layer_of_any_width(tmp_path: Path, ratio: float) -> None:
    write(tmp_path, {**LLADA, "mlp_hidden_size": None, "mlp_ratio": ratio}, {WTE: torch.zeros(1, 1)})
    refused(tmp_path, "'mlp_ratio'", json.dumps(ratio), "from 0.03125 to 524288")


def test_more_layers_than_the_files_hold(tmp_path: Path) -> None:
    folder = write_llada(tmp_path)
    write_config(folder, n_layers=1000)
    refused(folder, "model.safetensors", "blocks.2.attn_norm.weight is missing")


def test_sizes_are_compared_before_memory_is_used(tmp_path: Path) -> None:
    """A matrix of 2^24 x 2^24 would need a petabyte."""
    folder = write_llada(tmp_path)
    write_config(folder, d_model=2**24, mlp_hidden_size=2**24, vocab_size=2**24, embedding_size=2**24)
    refused(folder, "model.safetensors", "has the shape (50, 32)", "(16777216, 16777216)")


def write_config(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**LLADA, **changes}))


def test_a_value_that_is_too_long_or_too_deep_to_show(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    settings = Settings(tmp_path / "config.json", {"long": "x" * 1000, "deep": deep})
    assert str(settings.problem("long", "a number")).endswith(f'"{"x" * 79}; it must be a number')
    assert "is nested too deeply" in str(settings.problem("deep", "a number"))


def test_a_window_that_is_not_in_use_is_no_obstacle(tmp_path: Path) -> None:
    load_model(write_dream(tmp_path, sliding_window=4096, max_window_layers=2))


def test_a_missing_mask_id(tmp_path: Path) -> None:
    refused(write_llada(tmp_path / "l", mask_token_id=None), "config.json", "'mask_token_id'", "126336", "50")
    refused(write_dream(tmp_path / "d", mask_token_id=None), "config.json", "'mask_token_id'", "151666", "50")


def test_the_documented_mask_id_where_the_vocabulary_is_the_documented_one(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "d_model": 4,
        "n_heads": 1,
        "n_kv_heads": 1,
        "n_layers": 1,
        "mlp_hidden_size": 4,
        "mask_token_id": None,
    }
    folder = write_llada(tmp_path / "l", vocab_size=126464, embedding_size=126464, weight_tying=True, **small)
    assert load_model(folder).mask_id == 126336
    small = {"hidden_size": 4, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    folder = write_dream(tmp_path / "d", vocab_size=152064, tie_word_embeddings=True, mask_token_id=None, **small)
    assert load_model(folder).mask_id == 151666

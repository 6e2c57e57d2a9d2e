"""Optional ways to speed up a network: int8 weights (torchao) and `torch.compile`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from foretell.errors import ModelError, RequestError, unknown
from foretell.extras import require_extra
from foretell.models.quiet import quiet_libraries
from foretell.models.transformer import Transformer

QUANTIZE = ("int8",)


def check_quantize(kind: str | None) -> None:
    """Raise an error, before the weights are read, if the kind is unknown or its package is missing."""
    if kind is None:
        return
    if kind not in QUANTIZE:
        raise RequestError(unknown("quantize", kind, QUANTIZE))
    require_extra("quantize")


def quantize_weights(network: Any) -> None:
    """Round the matrices of every block to int8, with one scale per row; activations keep their dtype.

    The embedding and the head are not quantised, because stopping rules compare logits, which the head computes.
    """
    blocks = _blocks(network, "quantize")
    with quiet_libraries():
        try:
            from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415  an extra, slow to import
        except ImportError as problem:
            raise ModelError(f"torchao is installed, but cannot be imported: {problem}") from problem
        quantize_(blocks, Int8WeightOnlyConfig())


def compile_blocks(network: Any) -> None:
    """Compile the blocks at their first pass, for passes of any size. On a CPU this needs a C++ compiler."""
    for block in _blocks(network, "compile"):
        for name in ("enter", "leave"):
            setattr(block, name, torch.compile(getattr(block, name), dynamic=True))


def _blocks(network: Any, asked: str) -> nn.ModuleList:
    if not isinstance(network, Transformer):
        raise ModelError(f"{asked} is for LLaDA and Dream checkpoints; this is a {type(network).__name__}")
    return network.blocks

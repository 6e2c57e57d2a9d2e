"""The same network in less time: int8 weights (torchao) and `torch.compile`, where someone asks for them."""

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
    """Raise an error, before the weights are read, if there is no such kind or its package is missing."""
    if kind is None:
        return
    if kind not in QUANTIZE:
        raise RequestError(unknown("quantize", kind, QUANTIZE))
    require_extra("quantize")


def quantize_weights(network: Any) -> None:
    """Round the matrices of every block to int8, with a scale a row; what flows between them keeps its dtype.

    The embedding and the head stay as they are: a stopping rule compares two logits, and these come from the head.
    """
    blocks = _blocks(network, "quantize")
    with quiet_libraries():
        try:
            from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415  an extra, slow to import
        except ImportError as problem:
            raise ModelError(f"torchao is installed, but cannot be imported: {problem}") from problem
        quantize_(blocks, Int8WeightOnlyConfig())


def compile_blocks(network: Any) -> None:
    """Have torch translate the blocks, at the first pass, for passes of any size. It takes a C++ compiler on a CPU."""
    for block in _blocks(network, "compile"):
        for name in ("enter", "leave"):
            setattr(block, name, torch.compile(getattr(block, name), dynamic=True))


def _blocks(network: Any, asked: str) -> nn.ModuleList:
    if not isinstance(network, Transformer):
        raise ModelError(f"{asked} is for LLaDA and Dream checkpoints; this is a {type(network).__name__}")
    return network.blocks

"""Matrices in the layout in which oneDNN multiplies them, packed once at load.

torch's own product on a CPU rearranges the matrix at every call, which takes longer than the product itself if the pass
has few columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell.errors import ModelError
from foretell.models.memory import available_memory
from foretell.models.transformer import Transformer

LEAST = 512 * 512  # weights of a matrix below which the call costs more than the packed layout saves
RESERVE = 1 << 30  # bytes that packing leaves free, for logits, caches and activations


class PackedLinear(nn.Linear):
    """A linear layer for inference whose matrix is packed. It can be neither trained, moved nor converted.

    Unless `keep`, the original matrix is freed; `weight` then has a shape and a dtype, but no values.
    """

    def __init__(self, plain: nn.Linear, *, keep: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        self.matrix = _pack(plain.weight.detach())
        self.weight = plain.weight if keep else nn.Parameter(plain.weight.to("meta"), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return _multiply(x, self.matrix, self.bias)


def pack_weights(network: Any, packed: bool | None) -> None:
    """Pack the matrices of a network.

    None packs those that are large enough, if this CPU multiplies them faster and as long as there is memory. True
    packs all of them, False none. Raises ModelError if `packed` is True and the network or the CPU does not support it.
    """
    if packed is False:
        return
    matrices = _linears(network, 0 if packed else LEAST)
    if packed and not matrices:
        raise ModelError(f"packed is for networks with linear layers; {type(network).__name__} has none inside")
    try:
        useful = bool(matrices) and _measure_speedup(next(network.parameters())) > 1
    except ModelError:
        if packed:
            raise
        return
    for owner, name in matrices if useful or packed else ():
        # Asked again for every matrix: a replaced one gives its memory back, unless it is mapped from the file.
        if packed or _has_memory(getattr(owner, name).weight.nbytes):
            _replace(network, owner, name)


def packed_share(network: Any) -> float:
    """Return the share of the weights in a network's matrices, without its embedding, that are packed."""
    linears: list[nn.Linear] = [getattr(owner, name) for owner, name in _linears(network, 0)]
    packed = sum(part.weight.numel() for part in linears if isinstance(part, PackedLinear))
    return packed / max(1, sum(part.weight.numel() for part in linears))


def _has_memory(size: int) -> bool:
    available = available_memory()
    return available is not None and available - size >= RESERVE


def _linears(network: Any, least: int) -> list[tuple[nn.Module, str]]:
    """Return the owner and the name of every linear layer with at least `least` weights, the largest first.

    Subclasses of other libraries are left out, because they may multiply in another way.
    """
    found = [
        (part.weight.numel(), owner, name)
        for owner in (network.modules() if isinstance(network, nn.Module) else ())
        for name, part in owner.named_children()
        if isinstance(part, nn.Linear) and type(part) in (nn.Linear, PackedLinear) and part.weight.numel() >= least
    ]
    return [(owner, name) for _, owner, name in sorted(found, key=lambda each: -each[0])]


def _replace(network: nn.Module, owner: nn.Module, name: str) -> None:
    plain: nn.Linear = getattr(owner, name)
    weight = plain.weight
    keep = True  # code of another library may read it
    if isinstance(network, Transformer):
        # Rows are read of a head that is also the embedding, and in half precision (`Hidden.precise`).
        keep = plain is network.head and (weight is network.embed.weight or weight.dtype != torch.float32)
    setattr(owner, name, PackedLinear(plain, keep=keep))


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return packed


def _multiply(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], "")
    return product


def _measure_speedup(like: Tensor) -> float:
    """Return how much faster a packed product is on this CPU. Raises ModelError if it is not possible, or wrong.

    It is measured on one thread, which other processes disturb least.
    """
    if like.device.type != "cpu":
        raise ModelError(f"packed is for a CPU; the weights are on {like.device}")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise ModelError("packed needs oneDNN, which this build of torch does not have")
    chance = torch.Generator().manual_seed(0)  # the state of torch's own generator must not change
    weight, x = (torch.randn(rows, 1024, generator=chance).to(like.dtype) for rows in (1024, 16))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix = _pack(weight)
        seconds, plain = _fastest(lambda: F.linear(x, weight))
        packed_seconds, packed = _fastest(lambda: _multiply(x, matrix, None))
    except (RuntimeError, AttributeError) as refused:  # the dtype, or the function of torch, is not supported
        raise ModelError(f"oneDNN cannot pack {like.dtype} here: {str(refused).splitlines()[0]}") from refused
    finally:
        torch.set_num_threads(threads)
    error = float((packed - plain).abs().max() / plain.abs().max())
    if not error < torch.finfo(like.dtype).eps ** 0.5:
        raise ModelError(f"oneDNN's packed products are wrong on this CPU, by {error:.2g}")
    return seconds / packed_seconds


def _fastest(function: Callable[[], Tensor], rounds: int = 5) -> tuple[float, Tensor]:
    """Return the seconds of the fastest of a few calls, and what they return."""
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - started)
    return min(seconds), result

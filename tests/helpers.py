"""Models and states that several tests share."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.engine.request import Request, lay_out
from foretell.loop.decode import Step, decode
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Readout
from foretell.loop.spelling import Spelling
from foretell.loop.state import PARTS, DecodeState
from foretell.models.packed import pack_weights
from foretell.models.toy import Toy
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.policies.region.boxed import Boxed
from foretell.policies.region.delimiter import Delimiter
from foretell.policies.region.json import Json
from foretell.policies.region.pattern import Pattern

HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
# For tests of a plain and of a packed network.
PLAIN_AND_PACKED = pytest.mark.parametrize(
    "packed",
    [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_ONEDNN, reason="torch has no oneDNN here"))],
    ids=["plain", "packed"],
)

# Tokens of which random drafts make something that each of these regions finds.
PIECES = ("<mask>", " a", "<end>", "=", "\\boxed{", "}", '{"k":', "7", " 8", "]", ". ", "[")
WORDS = Spelling(lambda token: PIECES[token] if token < len(PIECES) else f" w{token}")
SOUGHT: list[Any] = [
    *(Delimiter("="), Delimiter("A", length=1, end="word"), Boxed(), Json("k"), Json("0")),
    *(Pattern(r"\d+"), Pattern("(a)(.)"), Pattern("(a)(.)", group=2)),
]


@dataclass(frozen=True)
class Double:
    """A denoiser that computes in float64, so that an oracle in Python floats rounds nothing differently."""

    inner: Denoiser

    def __post_init__(self) -> None:
        if isinstance(self.inner, Transformer):
            self.inner.double()

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        readout = self.inner(inputs)
        return lambda row, at: readout(row, at).double()

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def network(seed: int, vocab: int = 24, mask_id: int = 0, spread: float = 3.0, *, packed: bool = False) -> Transformer:
    """A random network whose logits differ enough to be sure of something.

    In float64: where a random recipe finds two positions as certain as each other, the last digit of a float32, which
    depends on the shape of the batch, would decide which of them is filled. A packed network has to be in float32, so
    it is for tests whose requests are always the same.
    """
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocab, mask_id, dim=16, layers=2, heads=2, kv_heads=1, hidden=32))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(spread)
    model.requires_grad_(False).eval()
    if not packed:
        return model.double()
    pack_weights(model, True)
    return model


def model_of(kind: str, seed: int, vocab: int = 24) -> Denoiser:
    return Toy(vocab=vocab, seed=seed) if kind == "toy" else network(seed, vocab).float()


def run(model: Denoiser, requests: list[Request], end_ids: tuple[int, ...] = ()) -> tuple[DecodeState, list[Step]]:
    """Decode a batch to its end."""
    state = lay_out(requests, model.mask_id, end_ids, spelling=WORDS)
    steps = list(decode(model, state, requests[0].recipe))
    return steps[-1].after, steps


def with_fields(state: DecodeState, **changes: Any) -> DecodeState:
    """A copy of a state with some fields of its parts replaced, whichever part has them."""
    parts = {name: getattr(state, name) for name in PARTS}
    owners = {field.name: name for name, part in reversed(parts.items()) for field in fields(part)}  # rows, text first
    for name, value in changes.items():
        parts[owners[name]] = replace(parts[owners[name]], **{name: value})
    return replace(state, **parts)


def logits_of(model: Denoiser, canvas: list[int], length: int) -> Tensor:
    """All logits of a window, from one plain pass. [N, V]"""
    ids = torch.tensor([canvas])
    every = torch.arange(len(canvas))[None]
    inputs = Inputs(
        ids, every, torch.ones_like(ids, dtype=torch.bool), every, every[:, -length:], None, len(canvas) - length
    )
    at = torch.arange(length)
    return model(inputs)(torch.zeros_like(at), at)

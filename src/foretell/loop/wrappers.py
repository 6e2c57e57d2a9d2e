"""Model quirks as denoisers around a denoiser: Dream's shifted head, classifier-free guidance, banned tokens.

They nest in any order, and a wrapped model is decoded like a bare one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from foretell.errors import ModelError, RequestError
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Precise, Readout, Selective


@dataclass(frozen=True, slots=True)
class Shifted:
    """Dream: the prediction for a column is the network's output one column earlier in the same text.

    The first column of a text has no earlier one and keeps its own output, also after left padding. So does a column
    that is not read and whose predecessor is not part of the pass.
    """

    inner: Denoiser

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        wanted = inputs.columns.gather(1, inputs.wanted)  # [b, w]
        source = torch.where(inputs.positions.gather(1, wanted) > 0, wanted - 1, wanted)
        if inputs.cache is None:
            return self.inner(with_all_columns(inputs)._replace(wanted=source))
        return self.inner(_with_columns(inputs, source))

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def with_all_columns(inputs: Inputs) -> Inputs:
    """Return the same pass over all L columns in order. Columns that it did not compute before are not attended.

    `wanted` is not translated; the caller has to do that.
    """
    length = inputs.canvas.shape[1]
    columns = torch.arange(length, device=inputs.canvas.device).expand_as(inputs.canvas)
    if inputs.columns.shape[1] == length:
        return inputs._replace(columns=columns)
    computed = torch.zeros_like(inputs.attend).scatter(1, inputs.columns, True)
    return inputs._replace(columns=columns, attend=inputs.attend & computed)


def _with_columns(inputs: Inputs, source: Tensor) -> Inputs:
    """Return the pass with the columns `source` [b, w] wanted; columns that it lacks are added if they are read.

    Rows lack different numbers of columns. Rows that lack fewer repeat a column they have, which writes the same
    keys and values to the cache again.
    """
    rows, have = inputs.columns.shape
    index = torch.full_like(inputs.canvas, -1)  # [b, L] index of each column in the pass
    index.scatter_(1, inputs.columns, torch.arange(have, device=source.device).expand(rows, have))
    if inputs.read is not None:
        known = index.gather(1, source) >= 0
        source = torch.where(known | inputs.read, source, inputs.columns.gather(1, inputs.wanted))
    wanted = torch.zeros_like(inputs.attend).scatter(1, source, True)
    lacking = wanted & (index < 0)  # [b, L]
    width = int(lacking.sum(dim=1).max()) if rows else 0
    if width == 0:
        return inputs._replace(wanted=index.gather(1, source))
    # A stable sort brings the lacking columns to the front, in order.
    extra = lacking.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    extra = torch.where(lacking.gather(1, extra), extra, inputs.columns[:, :1])
    columns = torch.cat([inputs.columns, extra], dim=1)
    index.scatter_(1, columns, torch.arange(have + width, device=source.device).expand(rows, have + width))
    return inputs._replace(columns=columns, wanted=index.gather(1, source))


@dataclass(frozen=True, slots=True)
class PairKV:
    """Implements `parts.KVStore` for two passes over one canvas: with its prompt, and with the prompt masked."""

    conditional: KVStore
    unconditional: KVStore

    def view(self, rows: Tensor | None) -> PairKV:
        return PairKV(self.conditional.view(rows), self.unconditional.view(rows))

    def keep(self, rows: Sequence[int]) -> None:
        self.conditional.keep(rows)
        self.unconditional.keep(rows)

    def grow(self, rows: int, columns: int) -> None:
        self.conditional.grow(rows, columns)
        self.unconditional.grow(rows, columns)

    def trim(self, columns: int) -> None:
        self.conditional.trim(columns)
        self.unconditional.trim(columns)


@dataclass(frozen=True, slots=True)
class Guided:
    """Classifier-free guidance: un + (scale + 1)(cond - un), where `un` does not see the prompt.

    Costs two forward passes per step. Scale 0 is the model alone, bit for bit.
    `pins`: `un` does not see pinned tokens either, as in the released code.
    """

    inner: Denoiser
    scale: float
    pins: bool = False

    def __post_init__(self) -> None:
        if not isfinite(self.scale) or self.scale < 0:
            raise RequestError(f"the guidance scale is {self.scale}; it must be a finite number, 0 (off) or above")

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        stores = inputs.cache
        if stores is not None and not isinstance(stores, PairKV):
            raise ModelError(
                f"a guided model needs the cache that its own new_cache returned, not a {type(stores).__name__}"
            )
        canvas = inputs.canvas.clone()
        # Padding is masked along with the prompt: nothing attends to it.
        canvas[:, : inputs.prompt] = self.mask_id
        if self.pins and inputs.pinned is not None:
            canvas[:, inputs.prompt :].masked_fill_(inputs.pinned, self.mask_id)
        conditional = self.inner(inputs._replace(cache=stores and stores.conditional))
        unconditional = self.inner(inputs._replace(canvas=canvas, cache=stores and stores.unconditional))
        return _Contrast(conditional, unconditional, self.scale)

    def new_cache(self, batch: int, length: int) -> PairKV:
        return PairKV(self.inner.new_cache(batch, length), self.inner.new_cache(batch, length))


@dataclass(frozen=True, slots=True)
class _Contrast:
    conditional: Readout
    unconditional: Readout
    scale: float

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        conditional = self.conditional(row, at)
        # un + (s + 1)(cond - un), written so that scale 0 changes no bit.
        contrast = conditional + self.scale * (conditional - self.unconditional(row, at))
        return contrast.masked_fill(conditional == -inf, -inf)  # for a banned token the sum is inf - inf

    def precise(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        conditional, unconditional = (
            _logits_of(side, row, at, tokens) for side in (self.conditional, self.unconditional)
        )
        return conditional + self.scale * (conditional - unconditional)

    def select(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        conditional, unconditional = (
            select_logits(side, row, at, tokens) for side in (self.conditional, self.unconditional)
        )
        return conditional + self.scale * (conditional - unconditional)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """Tokens that must never be proposed: their logits are -inf."""

    inner: Denoiser
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(token < 0 for token in self.tokens):
            raise RequestError(f"suppressed tokens are {self.tokens}; a token id is 0 or above")

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        return _Banned(self.inner(inputs), self.tokens)

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


@dataclass(frozen=True, slots=True)
class _Banned:
    inner: Readout
    tokens: tuple[int, ...]

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        logits = self.inner(row, at)
        if self.tokens and max(self.tokens) >= logits.shape[1]:
            raise RequestError(f"suppressed token {max(self.tokens)} is outside the vocabulary of {logits.shape[1]}")
        return logits.index_fill(1, torch.tensor(self.tokens, dtype=torch.long, device=logits.device), -inf)

    def precise(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        return _logits_of(self.inner, row, at, tokens)  # a banned token is never among the best

    def select(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        return select_logits(self.inner, row, at, tokens)  # a slot says itself which tokens it allows


def _logits_of(readout: Readout, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
    """Return the logits of a few tokens, in float32 if the readout supports it. [n, k]"""
    if isinstance(readout, Precise):
        return readout.precise(row, at, tokens)
    return readout(row, at).gather(-1, tokens).float()


def select_logits(readout: Readout, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
    """Return the logits of `tokens` [k] at each position, in float32 or better. [n, k]

    The others are not computed if the readout can leave them out.
    """
    if isinstance(readout, Selective):
        return readout.select(row, at, tokens)
    logits = readout(row, at).index_select(1, tokens)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))

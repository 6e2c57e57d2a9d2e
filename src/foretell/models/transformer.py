"""A bidirectional transformer of the Llama family: the network of LLaDA and Dream checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell.loop.protocols import Inputs

UNBOUNDED = 1 << 20  # the context of a model that states none
COLUMNS = 64  # a store widens by multiples of this


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of a network; `llada` and `dream` translate a config.json into it."""

    vocab_size: int  # rows of the embedding
    mask_id: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    qkv_bias: bool = False  # Dream (Qwen2) has one, LLaDA does not
    tied: bool = False  # the head is the embedding
    context: int = UNBOUNDED  # the limit of prompt and window together, in tokens
    outputs: int | None = None  # rows of the head; None: the same as the embedding

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class DenseKV:
    """Implements `parts.KVStore` with two dense tensors. Columns that are not computed keep their old values.

    The tensors have spare room, so that a row can be added or removed without copying all others. The first rows
    and the last columns are in use, because a canvas grows to the left.
    """

    def __init__(self, keys: Tensor, values: Tensor, selected: Tensor | None = None) -> None:
        self.keys, self.values = keys, values  # [layers, room for rows, H, room for columns, D], keys after rotation
        self.rows, self.columns = keys.shape[1], keys.shape[3]  # in use
        self.selected = selected  # [b] the rows of this view; None: all rows

    def update(self, layer: int, columns: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v [b, H, q, D] at `columns` [b, q]; return all L columns of these rows."""
        keys, values = self._in_use(self.keys[layer]), self._in_use(self.values[layer])
        rows = torch.arange(len(k), device=k.device) if self.selected is None else self.selected
        heads = torch.arange(k.shape[1], device=k.device)
        where = (rows[:, None, None], heads[None, :, None], columns[:, None, :])
        keys[where], values[where] = k, v
        return (keys, values) if self.selected is None else (keys[self.selected], values[self.selected])

    def view(self, rows: Tensor | None) -> DenseKV:
        return DenseKV(self._in_use(self.keys), self._in_use(self.values), rows)

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        moves = [(to, row) for to, row in enumerate(rows) if to != row]
        if moves:
            to, source = (torch.tensor(each, device=self.keys.device) for each in zip(*moves, strict=True))
            for part in (self.keys, self.values):
                part[:, to] = part[:, source]
        self.rows = len(rows)

    @torch.inference_mode()
    def grow(self, rows: int, columns: int) -> None:
        room, width = self.keys.shape[1], self.keys.shape[3]
        if rows > room or columns > width:
            room = room if rows <= room else max(rows, 2 * room)
            width = width if columns <= width else -(-columns // COLUMNS) * COLUMNS
            self.keys, self.values = (self._copy_to_larger(part, room, width) for part in (self.keys, self.values))
        else:
            for part in (self.keys, self.values):  # attention masks do not stop a NaN that another request left
                part[:, self.rows : rows] = 0
                part[:, : self.rows, :, width - columns : width - self.columns] = 0
        self.rows, self.columns = rows, columns

    def _copy_to_larger(self, part: Tensor, room: int, width: int) -> Tensor:
        """Return a copy in a larger tensor, filled up with zeros."""
        larger = part.new_zeros(part.shape[0], room, part.shape[2], width, part.shape[4])
        larger[:, : self.rows, :, width - self.columns :] = self._in_use(part)
        return larger

    def trim(self, columns: int) -> None:
        self.columns -= columns

    def _in_use(self, part: Tensor) -> Tensor:
        """Return the rows and columns in use of [..., room for rows, H, room for columns, D]."""
        return part[..., : self.rows, :, part.shape[-2] - self.columns :, :]


class Norm(nn.Module):
    """RMSNorm in float32, cast back before the weight is applied, as in the training of both families."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.grouped = config.kv_heads != config.heads
        self.q = nn.Linear(config.dim, config.heads * self.head_dim, bias=config.qkv_bias)
        self.k = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.out = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the columns x [b, q, dim]. [b, H, q, D] each"""
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor) -> Tensor:
        """Attend from q [b, H, q, D] to the columns of k and v [b, H, l, D] that `keys` [b, l] allows. [b, q, dim]"""
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keys[:, None, None, :], enable_gqa=self.grouped)
        mixed: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """One layer: `enter`, then the cache, then `leave`. The cache is separate, so that both can be compiled."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.attn_norm = Norm(config.dim, config.norm_eps)
        self.attn = Attention(config)
        self.mlp_norm = Norm(config.dim, config.norm_eps)
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, inputs: Inputs) -> Tensor:
        q, k, v = self.enter(x, *turn)
        if isinstance(inputs.cache, DenseKV):
            k, v = inputs.cache.update(self.layer, inputs.columns, k, v)
        return self.leave(x, q, k, v, keys)

    def enter(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.attn.project(self.attn_norm(x), cos, sin)

    def leave(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, keys: Tensor) -> Tensor:
        x = x + self.attn.mix(q, k, v, keys)
        h = self.mlp_norm(x)
        y: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return y


@dataclass(frozen=True, slots=True)
class Hidden:
    """Implements `protocols.Readout`: the last layer's states, and the head that reads them."""

    states: Tensor  # [b, w, dim], normalised
    head: nn.Linear

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        logits: Tensor = self.head(self.states[row, at])
        return logits

    def precise(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        """Implements `protocols.Precise`."""
        return torch.einsum("nd,nkd->nk", self.states[row, at].float(), self.head.weight[tokens].float())

    def select(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        """Implements `protocols.Selective`. A packed head without its rows computes all logits."""
        dtype = torch.promote_types(self.states.dtype, torch.float32)
        if self.head.weight.is_meta:
            return self(row, at).index_select(1, tokens).to(dtype)
        return F.linear(self.states[row, at].to(dtype), self.head.weight[tokens].to(dtype))


class Transformer(nn.Module):
    """Implements `protocols.Denoiser`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.norm = Norm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.outputs or config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight

    @property
    def mask_id(self) -> int:
        return self.config.mask_id

    @property
    def context(self) -> int:
        return self.config.context

    def forward(self, inputs: Inputs) -> Hidden:
        turn = rotations(inputs.positions.gather(1, inputs.columns), self.config.head_dim, self.config.rope_theta)
        keys = inputs.attend if inputs.cache is not None else inputs.attend.gather(1, inputs.columns)
        x = self.embed(inputs.canvas.gather(1, inputs.columns))
        for block in self.blocks:
            x = block(x, turn, keys, inputs)
        rows = torch.arange(len(x), device=x.device)[:, None]
        return Hidden(self.norm(x[rows, inputs.wanted]), self.head)

    def new_cache(self, batch: int, length: int) -> DenseKV:
        shape = (self.config.layers, batch, self.config.kv_heads, length, self.config.head_dim)
        weight = self.embed.weight
        return DenseKV(weight.new_zeros(shape), weight.new_zeros(shape))


def rotations(places: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [b, 1, q, D/2] of the rotary angles, in float32 for any dtype of the model."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=places.device, dtype=torch.float32) / head_dim)
    angle = places[:, None, :, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first half of each head against the second, as Llama checkpoints expect."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

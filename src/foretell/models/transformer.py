"""A bidirectional transformer of the Llama family: the one network behind LLaDA and Dream checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell.protocols import Inputs

UNBOUNDED = 1 << 40


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """The shape of a network, in our words; `llada` and `dream` translate a config.json into it."""

    vocab_size: int  # rows of the embedding and of the head
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
    context: int = UNBOUNDED  # tokens of prompt and window together that the network was made for

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class DenseKV:
    """Implements `state.KVStore` with two dense tensors. Columns not computed are simply not rewritten."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor | None = None) -> None:
        self.keys, self.values = keys, values  # [layers, B, H, L, D], keys after rotation
        self.rows = torch.arange(keys.shape[1], device=keys.device) if rows is None else rows

    def update(self, layer: int, columns: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v [b, H, q, D] at `columns` [b, q]; return all L columns of these rows."""
        heads = torch.arange(k.shape[1], device=k.device)
        where = (self.rows[:, None, None], heads[None, :, None], columns[:, None, :])
        self.keys[layer][where], self.values[layer][where] = k, v
        return self.keys[layer][self.rows], self.values[layer][self.rows]

    def view(self, rows: Tensor) -> DenseKV:
        return DenseKV(self.keys, self.values, rows)

    def select(self, rows: Tensor) -> DenseKV:
        return DenseKV(self.keys[:, rows], self.values[:, rows])

    def pad(self, rows: int, columns: int) -> DenseKV:
        blank = (0, 0, columns, 0, 0, 0, 0, rows)
        return DenseKV(F.pad(self.keys, blank), F.pad(self.values, blank))


class Norm(nn.Module):
    """RMSNorm in float32, cast back before the weight, as both families were trained."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.grouped = config.kv_heads != config.heads
        self.q = nn.Linear(config.dim, config.heads * self.head_dim, bias=config.qkv_bias)
        self.k = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.out = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, inputs: Inputs) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotate(q, *turn), rotate(k, *turn)
        if isinstance(inputs.cache, DenseKV):
            k, v = inputs.cache.update(self.layer, inputs.columns, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keys[:, None, None, :], enable_gqa=self.grouped)
        mixed: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.attn_norm = Norm(config.dim, config.norm_eps)
        self.attn = Attention(config, layer)
        self.mlp_norm = Norm(config.dim, config.norm_eps)
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, inputs: Inputs) -> Tensor:
        x = x + self.attn(self.attn_norm(x), turn, keys, inputs)
        h = self.mlp_norm(x)
        y: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return y


@dataclass(frozen=True, slots=True)
class Hidden:
    """Implements `protocols.Readout`: the last layer's states, and the head that reads them."""

    states: Tensor  # [b, w, dim], normed
    head: nn.Linear

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        logits: Tensor = self.head(self.states[row, at])
        return logits

    def precise(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        """Implements `protocols.Precise`."""
        return torch.einsum("nd,nkd->nk", self.states[row, at].float(), self.head.weight[tokens].float())


class Transformer(nn.Module):
    """Implements `protocols.Denoiser`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.norm = Norm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight

    @property
    def mask_id(self) -> int:
        return self.config.mask_id

    def forward(self, inputs: Inputs) -> Hidden:
        turn = rotations(inputs.places.gather(1, inputs.columns), self.config.head_dim, self.config.rope_theta)
        keys = inputs.keys if inputs.cache is not None else inputs.keys.gather(1, inputs.columns)
        x = self.embed(inputs.canvas.gather(1, inputs.columns))
        for block in self.blocks:
            x = block(x, turn, keys, inputs)
        rows = torch.arange(len(x), device=x.device)[:, None]
        return Hidden(self.norm(x[rows, inputs.asked]), self.head)

    def new_cache(self, batch: int, length: int) -> DenseKV:
        shape = (self.config.layers, batch, self.config.kv_heads, length, self.config.head_dim)
        weight = self.embed.weight
        return DenseKV(weight.new_zeros(shape), weight.new_zeros(shape))


def rotations(places: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [b, 1, q, D/2] of the rotary angles, in float32 whatever the model's dtype."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=places.device, dtype=torch.float32) / head_dim)
    angle = places[:, None, :, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first half of each head against the second, as Llama checkpoints expect."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

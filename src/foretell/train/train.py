"""Train masked diffusion models in LLaDA's format from scratch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from foretell.models.family import Settings
from foretell.models.llada import configure
from foretell.models.transformer import Attention, Transformer
from foretell.train.batches import Batch, Encoder
from foretell.train.config import TrainRecipe
from foretell.train.run import Run, launch


def compute_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the weighted cross-entropy of a batch's hidden tokens."""
    logits = model(batch.inputs)(batch.row, batch.at)  # [n, V]
    each = F.cross_entropy(logits, batch.target, reduction="none")
    return (each * batch.weight).sum()


def rate_factor(step: int, recipe: TrainRecipe) -> float:
    """Return the learning rate's factor at a step, interpolated linearly between the recipe's points."""
    steps, factors = zip(*recipe.pace, strict=True)
    return float(np.interp(step, steps, factors))


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> None:
    """Initialise the network to copy: attention passes on the values it attends to, and the head reads embeddings.

    A new network then only has to learn where to attend, so it learns to copy from its prompt in hundreds of steps
    instead of thousands. The other residual branches start at zero.
    """
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            nn.init.ones_(weight)
        elif name.endswith("down.weight"):
            nn.init.zeros_(weight)
        else:
            nn.init.normal_(weight, std=0.3 if name == "embed.weight" else weight.shape[1] ** -0.5)
    model.head.weight.copy_(0.5 * model.embed.weight)
    for block in model.blocks:
        attention = cast("Attention", block.attn)
        values = nn.init.orthogonal_(attention.v.weight)  # [kv_heads * D, dim]
        heads = values.view(-1, attention.head_dim, values.shape[1])
        shared = attention.out.weight.shape[1] // len(values)  # query heads per value head
        attention.out.weight.copy_(0.5 * heads.repeat_interleave(shared, 0).flatten(0, 1).T)


@dataclass(slots=True)
class Training(Run):
    """Implements `Run`: minimises the cross-entropy of hidden tokens."""

    recipe: TrainRecipe

    @classmethod
    def start(cls, recipe: TrainRecipe, rank: int) -> Training:
        """Start from the last checkpoint if there is one, otherwise from scratch."""
        model = Transformer(configure(Settings.read(recipe.model)))
        initialise(model, recipe.seed)
        inside = {name: name.startswith("blocks.") and w.ndim == 2 for name, w in model.named_parameters()}
        inner, outer = ([w for name, w in model.named_parameters() if inside[name] is side] for side in (True, False))
        groups = [{"params": inner, "rate": recipe.matrix_rate}, {"params": outer, "rate": recipe.other_rate}]
        optimiser = AdamW(groups, betas=(0.9, recipe.second_beta), weight_decay=recipe.weight_decay)
        run = cls(recipe, rank, model, optimiser, deepcopy(model).requires_grad_(False))
        run.resume()
        return run

    def encoder(self) -> Encoder:
        return Encoder(Tokenizer.from_file(str(self.recipe.model / "tokenizer.json")), self.recipe.eos_weight)

    def advance(self, batch: Batch) -> float:
        factor = rate_factor(self.step, self.recipe)
        return self.descend(compute_loss(self.model, batch), factor)


def train(recipe: TrainRecipe) -> None:
    """Run a recipe to its end, or resume it where it was interrupted."""
    launch(recipe, Training.start)

"""Self-distillation through time (SDTT): a student learns to do in one step what its teacher does in two steps.

The method is Deschenaux and Gulcehre's ("Beyond Autoregression: Fast LLMs via Self-Distillation Through Time"), on
response positions only, as the Prophet paper applies it to LLaDA. Responses are masked as in training (`Masking`): t
is uniform, and a share of the rows is masked in an order that a decoder could have followed. Each round halves the
steps that a decoder needs; the averaged student is then both the teacher and the first student of the next round.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.optim import AdamW

from foretell.engine.codec import Codec
from foretell.errors import ModelError, RecipeError
from foretell.loop.protocols import Denoiser
from foretell.models.family import Settings
from foretell.models.llada import LLADA
from foretell.models.load import family_of, load_model
from foretell.models.transformer import Transformer
from foretell.tasks import Task
from foretell.train.batches import Batch, ChatEncoder, Encoder
from foretell.train.config import DistilRecipe
from foretell.train.run import Run, launch

JUMP = 2  # teacher steps per student step
NEVER = -1e9  # a logit whose probability is exactly 0 and whose log-probability is finite
DRAWS = 1  # separates the teacher's random numbers from those of the batches


def compute_log_probs(model: Denoiser, batch: Batch, canvas: Tensor, chosen: Tensor) -> Tensor:
    """Return log-probabilities [k, V] at the `chosen` [n] of a batch's hidden positions, without the mask token."""
    logits = model(batch.inputs._replace(canvas=canvas))(batch.row[chosen], batch.at[chosen]).float()
    is_mask = (
        torch.arange(logits.shape[-1], device=logits.device) == model.mask_id
    )  # a head may have no column for the mask
    return logits.masked_fill(is_mask, NEVER).log_softmax(-1)


@torch.no_grad()
def compute_targets(teacher: Denoiser, batch: Batch, dt: float, draws: Generator) -> Tensor:
    """Return the student's target for each hidden position: log-probabilities [n, V].

    The teacher goes from t to t - dt, twice: each mask is revealed with probability dt / t, as a token drawn from the
    teacher's distribution. A position takes its target from the step that reveals it, otherwise from the last step.
    The t of a row is the hidden share of its window, so a step reveals a share dt of the window on average.
    """
    canvas = batch.inputs.canvas.clone()  # [b, L]
    rows, window = batch.inputs.wanted.shape
    column = batch.inputs.wanted[batch.row, batch.at]  # [n]
    t = (torch.bincount(batch.row, minlength=rows) / window)[batch.row]  # [n]
    hidden = torch.ones_like(batch.row, dtype=torch.bool)  # [n]
    wanted = torch.empty(0)
    for step in range(JUMP):
        believed = compute_log_probs(teacher, batch, canvas, hidden)
        wanted = believed if step == 0 else wanted.index_put((hidden,), believed)
        # With t <= dt this is the last step, which reveals everything.
        revealed = hidden & (torch.rand(len(t), generator=draws) * t.clamp(min=0) < dt)
        tokens = torch.multinomial(wanted[revealed].exp(), 1, generator=draws)
        canvas[batch.row[revealed], column[revealed]] = tokens.squeeze(1)
        hidden = hidden & ~revealed
        t = t - dt
    return wanted


def divergence(student: Tensor, teacher: Tensor, direction: str) -> Tensor:
    """Return KL(student || teacher), or KL(teacher || student) if `forward`, of log-probabilities [n, V]. [n]"""
    other, own = (teacher, student) if direction == "reverse" else (student, teacher)
    return F.kl_div(other, own, reduction="none", log_target=True).sum(-1)


@dataclass(slots=True)
class Distillation(Run):
    """Implements `Run`: minimises the divergence from what a frozen teacher predicts one step later."""

    recipe: DistilRecipe
    teacher: Transformer

    @classmethod
    def start(cls, recipe: DistilRecipe, rank: int) -> Distillation:
        """Start from the last checkpoint if there is one, otherwise with a student that equals its teacher."""
        teacher = load_network(recipe.model)
        model = deepcopy(teacher).requires_grad_(True)
        run = cls(recipe, rank, model, build_optimiser(model, recipe), deepcopy(teacher), teacher)
        run.resume()
        return run

    @property
    def age(self) -> int:
        return self.step - self.recipe.round_at(self.step - 1)[0]

    @property
    def networks(self) -> dict[str, Transformer]:
        return {"model": self.model, "ema": self.ema, "teacher": self.teacher}

    def encoder(self) -> Encoder:
        return ChatEncoder(Codec.load(self.recipe.model), self.recipe.eos_weight)

    def budget(self, task: Task) -> int:
        """Half of the teacher's steps in the current round."""
        return self.recipe.round_at(self.step - 1)[1].budget(task.window)

    def advance(self, batch: Batch) -> float:
        recipe = self.recipe
        start, now = recipe.round_at(self.step)
        window = batch.inputs.wanted.shape[1]
        seed = np.random.default_rng([recipe.seed, self.rank, self.step, DRAWS]).integers(2**63)
        wanted = compute_targets(self.teacher, batch, now.tokens / window, Generator().manual_seed(int(seed)))
        all_hidden = torch.ones_like(batch.row, dtype=torch.bool)
        predicted = compute_log_probs(self.model, batch, batch.inputs.canvas, all_hidden)
        loss = (divergence(predicted, wanted, recipe.direction) * batch.weight).sum()
        shares, factors = zip(*recipe.pace, strict=True)
        value = self.descend(loss, float(np.interp((self.step - start) / now.steps, shares, factors)))
        if self.step == start + now.steps < recipe.steps:
            self.start_next_round()
        return value

    def start_next_round(self) -> None:
        """Start the next round: the averaged student becomes the teacher and the new student."""
        weights = self.ema.state_dict()
        self.teacher.load_state_dict(weights)
        self.model.load_state_dict(weights)
        self.optimiser = build_optimiser(self.model, self.recipe)


def load_network(folder: Path) -> Transformer:
    """Load the network of a LLaDA checkpoint in float32, as a copy that can be trained."""
    family = family_of(Settings.read(folder))
    if family is not LLADA:
        kind = "a Hugging Face masked LM" if family is None else f"of the {family.name} family"
        raise ModelError(
            f"{folder} is {kind}; only LLaDA checkpoints can be distilled, since only these can be written"
        )
    model = load_model(folder, device="cpu", dtype="float32")
    assert isinstance(model, Transformer)
    return deepcopy(model)


def build_optimiser(model: Transformer, recipe: DistilRecipe) -> AdamW:
    groups = [{"params": list(model.parameters()), "rate": recipe.rate}]
    return AdamW(groups, betas=(0.9, recipe.second_beta), weight_decay=recipe.weight_decay)


def distil(recipe: DistilRecipe) -> None:
    """Run a recipe to its end, or resume it where it was interrupted."""
    load_network(recipe.model)  # report a bad model before any process starts
    launch(recipe, Distillation.start)


def check_export(recipe: DistilRecipe, export: Path) -> None:
    """Raises RecipeError if writing the student to `export` would overwrite its teacher."""
    if export.resolve() == recipe.model.resolve():
        raise RecipeError(f"{export} is the teacher's own folder; write the student to another one")

"""Masked-diffusion training of LLaDA-format models on CPU processes that average their parameters.

Each process draws its own batches and takes its own steps; every few steps the parameters are averaged. Batches are
a function of (seed, rank, step), so a run that was killed goes on from its last checkpoint exactly as if nothing had
happened.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.optim import AdamW

from foretell.lab.accuracy import accuracy
from foretell.lab.batches import Batch, Encoder, assemble, encode
from foretell.lab.log import LOG, Log
from foretell.lab.masks import Masking
from foretell.lab.recipe import TrainRecipe
from foretell.lab.tasks import draw
from foretell.lab.together import barrier, mean_over_processes
from foretell.models.family import Settings
from foretell.models.llada import configure, save_llada
from foretell.models.transformer import Attention, Transformer

LATEST = "latest.json"
GROUP = 16  # steps whose batches are drawn together, so that rows of like length share a batch


def batches(recipe: TrainRecipe, encoder: Encoder, rank: int, start: int) -> Iterator[tuple[str, Batch]]:
    """Endless batches from step `start` on, each of one task; tasks take turns by their share of the mix."""
    group, skip = divmod(start, GROUP)
    while True:
        rng = np.random.default_rng([recipe.seed, rank, group])
        phase = recipe.phase(group * GROUP)
        names = list(phase.mix)
        shares = np.array(list(phase.mix.values()))
        edges = np.cumsum(shares / shares.sum())
        turns = rng.permutation(np.searchsorted(edges, (np.arange(GROUP) + rng.random()) / GROUP))
        waiting = {
            name: group_of(recipe, encoder, phase.masking, name, int((turns == i).sum()), rng)
            for i, name in enumerate(names)
        }
        for index, turn in enumerate(turns):
            batch = waiting[names[turn]].pop()
            if index >= skip:
                yield names[turn], batch
        group, skip = group + 1, 0


def group_of(
    recipe: TrainRecipe, encoder: Encoder, masking: Masking, name: str, count: int, rng: np.random.Generator
) -> list[Batch]:
    task, size = recipe.tasks[name], recipe.rows[name]
    rows = encode(draw(task, rng, count * size, test=False), task, encoder, rng)
    rows.sort(key=lambda row: len(row.prompt))
    cuts = [rows[i * size : (i + 1) * size] for i in range(count)]
    return [assemble(cuts[i], task.block, encoder, masking, rng) for i in rng.permutation(count)]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch.inputs)(batch.row, batch.at)  # [n, V]
    each = F.cross_entropy(logits, batch.target, reduction="none")
    return (each * batch.weight).sum()


def pace(step: int, recipe: TrainRecipe) -> float:
    """The learning rate's factor at a step, on straight lines between the recipe's points."""
    steps, factors = zip(*recipe.pace, strict=True)
    return float(np.interp(step, steps, factors))


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> None:
    """Start as a copier: attention hands on what it looks at, and the head reads embeddings.

    All that a fresh network must find is where to look, so it learns to quote its prompt in hundreds of steps instead
    of thousands. The other residual branches start at zero.
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
        shared = attention.out.weight.shape[1] // len(values)  # query heads of one value head
        attention.out.weight.copy_(0.5 * heads.repeat_interleave(shared, 0).flatten(0, 1).T)


@dataclass(slots=True)
class Run:
    """One process's share of a training run: the network, its optimiser, the running average and the step."""

    recipe: TrainRecipe
    rank: int
    model: Transformer
    optimiser: AdamW
    ema: Transformer
    step: int = 0

    @classmethod
    def start(cls, recipe: TrainRecipe, rank: int) -> Run:
        """From the last checkpoint if there is one, else from scratch."""
        model = Transformer(configure(Settings.read(recipe.model)))
        initialise(model, recipe.seed)
        inside = {name: name.startswith("blocks.") and w.ndim == 2 for name, w in model.named_parameters()}
        inner, outer = ([w for name, w in model.named_parameters() if inside[name] is side] for side in (True, False))
        groups = [{"params": inner, "rate": recipe.matrix_rate}, {"params": outer, "rate": recipe.other_rate}]
        optimiser = AdamW(groups, betas=(0.9, recipe.second_beta), weight_decay=recipe.weight_decay)
        run = cls(recipe, rank, model, optimiser, deepcopy(model).requires_grad_(False))
        latest = recipe.out / LATEST
        if latest.is_file():
            run.restore(recipe.out / f"step-{json.loads(latest.read_text())['step']}")
        return run

    def advance(self, batch: Batch) -> float:
        """One step of this process; its loss."""
        factor = pace(self.step, self.recipe)
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * factor
        loss = loss_of(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        if self.step % self.recipe.average_every == 0:
            self.average()
        return loss.item()

    @torch.no_grad()
    def average(self) -> None:
        weights = list(self.model.parameters())
        flat = nn.utils.parameters_to_vector(weights)
        nn.utils.vector_to_parameters(mean_over_processes(flat), weights)
        # A young average follows quickly, so that it does not remember the first, random weights.
        kept = min(self.recipe.ema, self.step / (self.step + 10 * self.recipe.average_every))
        for old, new in zip(self.ema.parameters(), weights, strict=True):
            old.lerp_(new, 1 - kept)

    def save(self) -> None:
        """Every process writes its own state; the step counts as saved once all of them have."""
        folder = self.recipe.out / f"step-{self.step}"
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        replace(folder / f"rank-{self.rank}.pt", lambda path: torch.save(state, path))
        barrier()
        if self.rank == 0:
            line = json.dumps({"step": self.step})
            replace(self.recipe.out / LATEST, lambda path: path.write_text(line))
            for old in self.recipe.out.glob("step-*"):
                if old != folder:
                    shutil.rmtree(old)

    def restore(self, folder: Path) -> None:
        state = torch.load(folder / f"rank-{self.rank}.pt", weights_only=True)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.ema.load_state_dict(state["ema"])
        self.optimiser.load_state_dict(state["optimiser"])


def work(rank: int, recipe: TrainRecipe, meeting: str, parent: int) -> None:
    """One process from start to end; it does not outlive the one that started it."""
    torch.set_num_threads(1)
    if recipe.processes > 1:
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=recipe.processes)
    encoder = Encoder(Tokenizer.from_file(str(recipe.model / "tokenizer.json")), recipe.eos_weight)
    run = Run.start(recipe, rank)
    log = Log(recipe, rank, run.step)
    stream = batches(recipe, encoder, rank, run.step)
    while run.step < recipe.steps and (recipe.processes == 1 or os.getppid() == parent):
        name, batch = next(stream)
        log.add(name, run.advance(batch))
        if run.step % recipe.log_every == 0:
            log.flush(run.step)
        if run.step % recipe.test_every == 0:
            log.tested(run.step, test(run, encoder))
        if run.step % recipe.save_every == 0 or run.step == recipe.steps:
            run.save()
    if recipe.processes > 1:
        distributed.destroy_process_group()


def test(run: Run, encoder: Encoder) -> dict[str, float]:
    """Accuracy of the averaged weights on held-out problems, each process on its own ones."""
    recipe = run.recipe
    seeds = [[recipe.seed, run.rank, index] for index in range(len(recipe.names))]
    right = [
        accuracy(run.ema, encoder, recipe.tasks[name], recipe.test_rows, np.random.default_rng(seed))
        for name, seed in zip(recipe.names, seeds, strict=True)
    ]
    return dict(zip(recipe.names, mean_over_processes(torch.tensor(right)).tolist(), strict=True))


def train(recipe: TrainRecipe) -> None:
    """Run a recipe to its end, or go on where it was interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        if recipe.processes == 1:
            work(0, recipe, meeting, os.getpid())
        else:
            spawn(work, (recipe, meeting, os.getpid()), nprocs=recipe.processes)  # type: ignore[no-untyped-call]


def write_model(recipe: TrainRecipe, folder: Path) -> None:
    """The last checkpoint's averaged weights in half precision, with the config and the tokenizer's files."""
    run = Run.start(recipe, rank=0)
    stated = Settings.read(recipe.model).values
    save_llada(run.ema.half(), folder, **{**stated, "torch_dtype": "float16"})
    for path in recipe.model.glob("*token*.json"):
        if path.parent != folder.resolve():
            shutil.copy(path, folder)


def clear(recipe: TrainRecipe) -> None:
    """Forget the checkpoints and the log of earlier runs."""
    (recipe.out / LATEST).unlink(missing_ok=True)
    (recipe.out / LOG).unlink(missing_ok=True)
    for folder in recipe.out.glob("step-*"):
        shutil.rmtree(folder)


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the path and rename: a kill leaves the old file or the new one, never half of one."""
    partial = path.with_suffix(".partial")
    write(partial)
    partial.replace(path)

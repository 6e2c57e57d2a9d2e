"""Masked-diffusion training of LLaDA-format models on CPU processes that average their parameters.

Each process draws its own batches and takes its own steps; every few steps the parameters are averaged. Batches are
a function of (seed, rank, step), so a run that was killed goes on from its last checkpoint exactly as if nothing had
happened.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.optim import AdamW

from foretell.lab.accuracy import accuracy
from foretell.lab.batches import Batch, Encoder, assemble, encode
from foretell.lab.recipe import TrainRecipe
from foretell.lab.tasks import draw
from foretell.models.family import Settings
from foretell.models.llada import configure, save_llada
from foretell.models.transformer import Transformer

LATEST = "latest.json"
GROUP = 16  # steps whose batches are drawn together, so that rows of like length share a batch


def batches(recipe: TrainRecipe, encoder: Encoder, rank: int, start: int) -> Iterator[tuple[str, Batch]]:
    """Endless batches from step `start` on, each of one task; tasks take turns by their share of the mix."""
    group, skip = divmod(start, GROUP)
    while True:
        rng = np.random.default_rng([recipe.seed, rank, group])
        names = list(recipe.mix)
        shares = np.array([recipe.mix[name] for name in names])
        edges = np.cumsum(shares / shares.sum())
        turns = rng.permutation(np.searchsorted(edges, (np.arange(GROUP) + rng.random()) / GROUP))
        waiting = {name: group_of(recipe, encoder, name, int((turns == i).sum()), rng) for i, name in enumerate(names)}
        for turn in turns[skip:]:
            name = names[turn]
            yield name, waiting[name].pop()
        group, skip = group + 1, 0


def group_of(recipe: TrainRecipe, encoder: Encoder, name: str, count: int, rng: np.random.Generator) -> list[Batch]:
    task, size = recipe.tasks[name], recipe.rows[name]
    rows = encode(draw(task, rng, count * size, test=False), task, encoder, rng)
    rows.sort(key=lambda row: len(row.prompt))
    cuts = [rows[i * size : (i + 1) * size] for i in range(count)]
    return [assemble(cuts[i], task.block, encoder, recipe.masking, rng) for i in rng.permutation(count)]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch.inputs)(batch.row, batch.at)  # [n, V]
    each = F.cross_entropy(logits, batch.target, reduction="none")
    return (each * batch.weight).sum()


def pace(step: int, recipe: TrainRecipe) -> float:
    """The learning rate's factor: up, level, and down to zero at the last step."""
    down = (recipe.steps - step) / (recipe.steps * recipe.cooldown)
    return min(1.0, (step + 1) / recipe.warmup, down)


def initialise(model: Transformer, seed: int) -> None:
    """Residual branches and the head start at zero, so that depth is grown into."""
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            nn.init.ones_(weight)
        elif name.endswith(("attn.out.weight", "down.weight", "head.weight")):
            nn.init.zeros_(weight)
        elif name == "embed.weight":
            nn.init.normal_(weight, std=0.3)
        else:
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


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


class Log:
    """Losses and accuracies as lines of JSON, and one line of progress; only the first process writes."""

    def __init__(self, recipe: TrainRecipe, rank: int, start: int) -> None:
        self.path = recipe.out / "log.jsonl"
        self.recipe, self.active = recipe, rank == 0
        self.start, self.since, self.begun = start, time.monotonic(), time.monotonic()
        self.losses: dict[str, list[float]] = {name: [] for name in recipe.mix}
        if self.active:
            recipe.out.mkdir(parents=True, exist_ok=True)
            kept = [x for x in self.lines() if x["step"] <= start]  # what came after the checkpoint is done again
            self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.is_file() else []

    def add(self, name: str, loss: float) -> None:
        self.losses[name].append(loss)

    def flush(self, step: int) -> None:
        """Mean loss of each task over all processes since the last flush."""
        sums = torch.tensor([[sum(each), len(each)] for each in self.losses.values()], dtype=torch.float64)
        total, count = mean_over_processes(sums).T.tolist()
        means = {name: t / c for name, t, c in zip(self.losses, total, count, strict=True) if c}
        self.losses = {name: [] for name in self.losses}
        seconds = (time.monotonic() - self.begun) / (step - self.start)
        self.write({"step": step, "loss": means})
        if self.active:
            shown = "  ".join(f"{name} {loss:.3f}" for name, loss in means.items())
            left = timedelta(seconds=round(seconds * (self.recipe.steps - step)))
            print(f"step {step}/{self.recipe.steps}  {shown}  {seconds:.2f} s/step  {left} left", flush=True)

    def tested(self, step: int, right: dict[str, float]) -> None:
        self.write({"step": step, "accuracy": right})
        if self.active:
            print(
                f"step {step}  held out: " + "  ".join(f"{name} {share:.1%}" for name, share in right.items()),
                flush=True,
            )

    def write(self, line: dict[str, Any]) -> None:
        if self.active:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def work(rank: int, recipe: TrainRecipe, meeting: str) -> None:
    """One process from start to end."""
    torch.set_num_threads(1)
    if recipe.processes > 1:
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=recipe.processes)
    encoder = Encoder(Tokenizer.from_file(str(recipe.model / "tokenizer.json")), recipe.eos_weight)
    run = Run.start(recipe, rank)
    log = Log(recipe, rank, run.step)
    stream = batches(recipe, encoder, rank, run.step)
    while run.step < recipe.steps:
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
    seeds = [[recipe.seed, run.rank, index] for index in range(len(recipe.mix))]
    right = [
        accuracy(run.ema, encoder, recipe.tasks[name], recipe.test_rows, np.random.default_rng(seed))
        for name, seed in zip(recipe.mix, seeds, strict=True)
    ]
    return dict(zip(recipe.mix, mean_over_processes(torch.tensor(right)).tolist(), strict=True))


def train(recipe: TrainRecipe) -> None:
    """Run a recipe to its end, or go on where it was interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        if recipe.processes == 1:
            work(0, recipe, meeting)
        else:
            spawn(work, (recipe, meeting), nprocs=recipe.processes)  # type: ignore[no-untyped-call]


def export(recipe: TrainRecipe, folder: Path) -> None:
    """Write the last checkpoint's averaged weights in half precision, with the config and the tokenizer files."""
    run = Run.start(recipe, rank=0)
    settings = Settings.read(recipe.model)
    stated = {key: value for key, value in settings.values.items() if key not in ("dtype", "torch_dtype")}
    save_llada(run.ema.half(), folder, **{**stated, "torch_dtype": "float16"})
    for path in recipe.model.glob("*token*.json"):
        if not (folder / path.name).exists():
            shutil.copy(path, folder)


def mean_over_processes(x: Tensor) -> Tensor:
    if not distributed.is_initialized():
        return x
    distributed.all_reduce(x)
    return x / distributed.get_world_size()


def barrier() -> None:
    if distributed.is_initialized():
        distributed.barrier()


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the path and rename: a kill leaves the old file or the new one, never half of one."""
    partial = path.with_suffix(".partial")
    write(partial)
    partial.replace(path)

"""A training or distillation run: parallel processes, parameter averaging, checkpoints, the log, the saved model.

Each process draws its own batches and takes its own steps; every few steps the parameters are averaged. Batches are
a function of (seed, rank, step), so a run that was killed resumes from its last checkpoint with identical results.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.optim import AdamW

from foretell.models.family import Settings
from foretell.models.llada import save_llada
from foretell.models.transformer import Transformer
from foretell.storage import replace_file, write_file
from foretell.tasks import Task
from foretell.train.accuracy import measure_accuracy
from foretell.train.batches import Batch, Encoder, generate_batches
from foretell.train.config import RunConfig
from foretell.train.log import LOG, Log
from foretell.train.processes import barrier, mean_over_processes

LATEST = "latest.json"
COPIED = ("*token*.json", "chat_template*", "foretell.json")  # files of a model's folder besides config and weights


@dataclass(slots=True)
class Run(ABC):
    """The part of a run in one process: the network, its optimiser, the running average and the step."""

    recipe: RunConfig
    rank: int
    model: Transformer
    optimiser: AdamW
    ema: Transformer
    step: int = field(default=0, kw_only=True)

    @abstractmethod
    def encoder(self) -> Encoder: ...

    @abstractmethod
    def advance(self, batch: Batch) -> float:
        """Take one step in this process, and return its loss."""

    @property
    def age(self) -> int:
        """Steps since the running average began."""
        return self.step

    @property
    def networks(self) -> dict[str, Transformer]:
        """The networks that a checkpoint stores, by name."""
        return {"model": self.model, "ema": self.ema}

    def budget(self, task: Task) -> int | None:  # noqa: ARG002
        """Return the steps for decoding a held-out problem; None means one step per token."""
        return None

    def descend(self, loss: Tensor, factor: float) -> float:
        """Take one optimiser step on `loss`, with the learning rates of the parameter groups times `factor`."""
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * factor
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
        """Average the parameters over all processes, and update the running average."""
        weights = list(self.model.parameters())
        flat = nn.utils.parameters_to_vector(weights)
        nn.utils.vector_to_parameters(mean_over_processes(flat), weights)
        # A young average changes quickly, so that it forgets the initial weights.
        kept = min(self.recipe.ema, self.age / (self.age + 10 * self.recipe.average_every))
        for old, new in zip(self.ema.parameters(), weights, strict=True):
            old.lerp_(new, 1 - kept)

    def test(self, encoder: Encoder) -> dict[str, float]:
        """Measure the accuracy of the averaged weights on held-out problems; each process uses different ones."""
        recipe = self.recipe
        right = []
        for index, name in enumerate(recipe.names):
            task, rng = recipe.tasks[name], np.random.default_rng([recipe.seed, self.rank, index])
            right.append(measure_accuracy(self.ema, encoder, task, recipe.test_rows, rng, self.budget(task)))
        return dict(zip(recipe.names, mean_over_processes(torch.tensor(right)).tolist(), strict=True))

    def save(self) -> None:
        """Write this process's state; the step counts as saved once all processes have written theirs."""
        folder = self.recipe.out / f"step-{self.step}"
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: network.state_dict() for name, network in self.networks.items()}
        state = {"step": self.step, "optimiser": self.optimiser.state_dict(), **weights}
        with replace_file(folder / f"rank-{self.rank}.pt") as part:
            torch.save(state, part)
        barrier()
        if self.rank == 0:
            write_file(self.recipe.out / LATEST, json.dumps({"step": self.step}))
            for old in self.recipe.out.glob("step-*"):
                if old != folder:
                    shutil.rmtree(old)

    def resume(self) -> None:
        """Load the last checkpoint, if there is one."""
        latest = self.recipe.out / LATEST
        if not latest.is_file():
            return
        folder = self.recipe.out / f"step-{json.loads(latest.read_text())['step']}"
        state = torch.load(folder / f"rank-{self.rank}.pt", weights_only=True)
        self.step = state["step"]
        self.optimiser.load_state_dict(state["optimiser"])
        for name, network in self.networks.items():
            network.load_state_dict(state[name])


C = TypeVar("C", bound=RunConfig)
Start = Callable[[C, int], Run]  # creates a process's run from its recipe and its rank


def launch(recipe: C, start: Start[C]) -> None:
    """Run a recipe to its end, or resume it where it was interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        if recipe.processes == 1:
            run_process(0, recipe, start, meeting, os.getpid())
        else:
            spawn(run_process, (recipe, start, meeting, os.getpid()), nprocs=recipe.processes)  # type: ignore[no-untyped-call]


def run_process(rank: int, recipe: C, start: Start[C], meeting: str, parent: int) -> None:
    """Run one process from start to end; it ends when its parent process does."""
    torch.set_num_threads(1)
    if recipe.processes > 1:
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=recipe.processes)
    run = start(recipe, rank)
    encoder = run.encoder()
    log = Log(recipe, rank, run.step)
    stream = generate_batches(recipe, encoder, rank, run.step)
    while run.step < recipe.steps and (recipe.processes == 1 or os.getppid() == parent):
        name, batch = next(stream)
        log.add(name, run.advance(batch))
        if run.step % recipe.log_every == 0:
            log.flush(run.step)
        if run.step % recipe.test_every == 0:
            log.add_accuracy(run.step, run.test(encoder))
        if run.step % recipe.save_every == 0 or run.step == recipe.steps:
            run.save()
    if recipe.processes > 1:
        distributed.destroy_process_group()


def write_model(run: Run, folder: Path) -> None:
    """Write the averaged weights in half precision, with the config and the tokenizer's files."""
    source = run.recipe.model
    stated = Settings.read(source).values
    kind = "bfloat16" if stated.get("torch_dtype") == "bfloat16" else "float16"
    save_llada(run.ema.to(getattr(torch, kind)), folder, **{**stated, "torch_dtype": kind})
    for path in (path for pattern in COPIED for path in source.glob(pattern)):
        if path.parent != folder.resolve():
            shutil.copy(path, folder)


def clear_run(recipe: RunConfig) -> None:
    """Delete the checkpoints and the log of earlier runs."""
    (recipe.out / LATEST).unlink(missing_ok=True)
    (recipe.out / LOG).unlink(missing_ok=True)
    for folder in recipe.out.glob("step-*"):
        shutil.rmtree(folder)

"""A training or distillation run: parallel processes, parameter averaging, checkpoints, the log, the saved model.

Each process draws its own batches and takes its own steps; every few steps the parameters are averaged. Batches are
a function of (seed, rank, step), so a run that was killed resumes from its last checkpoint with identical results.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.optim import AdamW

from foretell.errors import ForetellError, StorageError
from foretell.models.family import Settings
from foretell.models.llada import save_llada
from foretell.models.transformer import Transformer
from foretell.storage import (
    convert,
    is_file,
    load_json,
    lock_file,
    make_folder,
    open_file,
    replace_file,
    write_file,
    writing,
)
from foretell.tasks import Task
from foretell.train.accuracy import measure_accuracy
from foretell.train.batches import Batch, Encoder, generate_batches
from foretell.train.config import RunConfig
from foretell.train.log import LOG, Log
from foretell.train.processes import barrier, mean_over_processes
from foretell.workers import run_workers

LATEST = "latest.json"
STEP = re.compile("step-([0-9]{1,18})")  # folder of a checkpoint
PATIENCE = 10.0  # seconds to wait for the processes of a killed run
COPIED = ("*token*.json", "chat_template*", "foretell.json")  # files of a model's folder besides config and weights


class Latest(msgspec.Struct):
    """The content of latest.json."""

    step: int


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
        make_folder(folder)
        weights = {name: network.state_dict() for name, network in self.networks.items()}
        state = {"step": self.step, "optimiser": self.optimiser.state_dict(), **weights}
        with replace_file(folder / f"rank-{self.rank}.pt") as part, part.open("wb") as file:
            torch.save(state, file)  # not to a path: torch would report a full disk as a RuntimeError
        barrier()
        if self.rank == 0:
            write_file(self.recipe.out / LATEST, json.dumps({"step": self.step}))
            for old in self.recipe.out.glob("step-*"):
                if old != folder:
                    with writing(old):
                        shutil.rmtree(old)

    def resume(self) -> None:
        """Load the last checkpoint, if there is one. Raises StorageError, which says what to do, if it is damaged."""
        latest = self.recipe.out / LATEST
        if not is_file(latest):
            return
        place = latest
        try:
            step = convert(load_json(latest, "number of the last step"), Latest).step
            place = self.recipe.out / f"step-{step}" / f"rank-{self.rank}.pt"
            with open_file(place, "checkpoint") as file:
                state = torch.load(file, weights_only=True)
            self.optimiser.load_state_dict(state["optimiser"])
            for name, network in self.networks.items():
                network.load_state_dict(state[name])
            if state["step"] != step:
                raise StorageError(f"it is of step {state['step']}")
            self.step = step
        except Exception as error:  # torch raises many types of errors for damaged files
            # Its messages advise to load the file as a pickle.
            why = error if isinstance(error, ForetellError) else "torch cannot load it"
            raise StorageError(f"{place} is damaged or of another recipe: {why}; {self._advise(place)}") from error

    def _advise(self, place: Path) -> str:
        """Return what to do if the checkpoint in `place` cannot be loaded."""
        again = f"delete {self.recipe.out / LATEST} to start over"
        steps = [int(found[1]) for path in self.recipe.out.iterdir() if (found := STEP.fullmatch(path.name))]
        others = [step for step in steps if f"step-{step}" != place.parent.name]
        if not others:
            return again
        return f'write {{"step": {max(others)}}} to {self.recipe.out / LATEST} to go back to that step, or {again}'


C = TypeVar("C", bound=RunConfig)
Start = Callable[[C, int], Run]  # creates a process's run from its recipe and its rank


def launch(recipe: C, start: Start[C]) -> None:
    """Run a recipe to its end, or resume it where it was interrupted.

    Raises RequestError if another training is writing to the same folder.
    """
    with lock_run(recipe), tempfile.TemporaryDirectory() as folder:
        work = partial(run_process, recipe, start, folder)
        if recipe.processes == 1:
            work(0)
        else:
            run_workers(work, recipe.processes, f"the last checkpoint is kept in {recipe.out}")


def lock_run(recipe: RunConfig) -> AbstractContextManager[None]:
    """Lock the folder of a run. Raises RequestError if another run holds it."""
    make_folder(recipe.out)
    return lock_file(recipe.out / ".lock", PATIENCE)


def run_process(recipe: C, start: Start[C], folder: str, rank: int) -> None:
    """Run one process from start to end. The processes meet in `folder`."""
    # Processes of a killed run may live for a moment; they would write to the same log.
    with lock_file(recipe.out / f".rank-{rank}.lock", PATIENCE):
        _run_steps(recipe, start, f"file://{folder}/meeting", rank)


def _run_steps(recipe: C, start: Start[C], meeting: str, rank: int) -> None:
    torch.set_num_threads(1)
    run = start(recipe, rank)  # before the processes meet, so that none waits for one that failed
    if recipe.processes > 1:
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=recipe.processes)
    encoder = run.encoder()
    log = Log(recipe, rank, run.step)
    stream = generate_batches(recipe, encoder, rank, run.step)
    while run.step < recipe.steps:
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
            with writing(folder):
                shutil.copy(path, folder)


def clear_run(recipe: RunConfig) -> None:
    """Delete the checkpoints and the log of earlier runs. Raises RequestError if another run is writing them."""
    with lock_run(recipe), writing(recipe.out):
        (recipe.out / LATEST).unlink(missing_ok=True)
        (recipe.out / LOG).unlink(missing_ok=True)
        for folder in recipe.out.glob("step-*"):
            shutil.rmtree(folder)

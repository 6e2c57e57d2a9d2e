"""The log of a run: losses and accuracies as JSON lines, and progress on the terminal."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import msgspec
import torch

from foretell.errors import StorageError
from foretell.storage import convert, is_file, make_folder, parse_json, read_text, write_file, writing
from foretell.train.config import RunConfig
from foretell.train.processes import mean_over_processes

LOG = "log.jsonl"


class LogLine(msgspec.Struct):
    """The types of a line: the means over the steps up to `step`."""

    step: int
    loss: dict[str, float] = {}
    accuracy: dict[str, float] = {}


class Log:
    """Collects losses in every process; only the first process writes them."""

    def __init__(self, recipe: RunConfig, rank: int, start: int) -> None:
        self.path = recipe.out / LOG
        self.recipe, self.active = recipe, rank == 0
        self.start, self.begun = start, time.monotonic()
        self.losses: dict[str, list[float]] = {name: [] for name in recipe.names}
        if self.active:
            make_folder(recipe.out)
            kept = [x for x in self.lines() if x["step"] <= start]  # later steps are repeated
            write_file(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines; an interrupted run may have left half a line at the end."""
        complete = read_text(self.path, "log").split("\n")[:-1] if is_file(self.path) else []
        return [_parse_line(line, f"{self.path}, line {number}") for number, line in enumerate(complete, 1)]

    def add(self, name: str, loss: float) -> None:
        self.losses[name].append(loss)

    def flush(self, step: int) -> None:
        """Log the mean loss per task over all processes since the last flush."""
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

    def add_accuracy(self, step: int, right: dict[str, float]) -> None:
        self.write({"step": step, "accuracy": right})
        if self.active:
            shown = "  ".join(f"{name} {share:.1%}" for name, share in right.items())
            print(f"step {step}  held out: {shown}", flush=True)

    def write(self, line: dict[str, Any]) -> None:
        if self.active:
            with writing(self.path), self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _parse_line(text: str, where: str) -> dict[str, Any]:
    try:
        line: dict[str, Any] = parse_json(text, "it")
        convert(line, LogLine)
    except StorageError as error:
        raise StorageError(f"{where} is damaged: {error}; delete the line to resume the run") from error
    return line

"""Predict memory, step times and throughput of a model on a device, without weights and without the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from foretell.errors import ContextLengthError, RequestError, whole
from foretell.models.memory import stored_values, working_values
from foretell.plan.devices import Device
from foretell.plan.passes import Pass, dry_run
from foretell.plan.roofline import Bound, Roofline
from foretell.plan.shapes import ModelShape
from foretell.policies.stop.never import Never
from foretell.recipes.recipe import Recipe

MOST_ROWS = 4096  # among which the useful batch size is searched


@dataclass(frozen=True, slots=True)
class PassKind:
    """The passes of one kind in a request: those over the whole text, or those over a part of the window."""

    name: str
    count: int
    columns: float  # computed per row, on average
    bound: Bound  # of one pass, on average


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    weights: int
    stored: int  # keys and values of all rows
    working: int  # states of one layer and logits of all rows
    device: float | None

    @property
    def total(self) -> int:
        return self.weights + self.stored + self.working


@dataclass(frozen=True, slots=True)
class Prediction:
    """Lower bounds of times and an estimate of memory, for rows that decode in step."""

    steps: int
    memory: Memory
    kinds: tuple[PassKind, ...]
    step: Bound  # on average
    request: Bound  # all steps
    rows: int
    rows_fit: int | None  # rows that the device's memory holds
    rows_useful: int  # with more rows, requests per second rise by less than a tenth when rows double

    @property
    def requests_per_second(self) -> float:
        """The most that the batch can finish."""
        return self.rows / self.request.seconds


def predict(
    shape: ModelShape,
    device: Device,
    dtype: torch.dtype,
    recipe: Recipe,
    *,
    rows: int,
    prompt: int,
    window: int,
    answer: int,
    tokens_per_step: float = 1.0,
    steps: int | None = None,
) -> Prediction:
    """Predict from the passes of a dry run; `dry_run` explains `tokens_per_step` and `steps`."""
    for name, value in (("batch", rows), ("window", window)):
        whole(name, value, 1, error=RequestError)
    whole("prompt", prompt, 0, error=RequestError)
    whole("answer", answer, 0, window, RequestError)
    if prompt + window > shape.config.context:
        sizes = f"a prompt of {prompt} tokens and a window of {window}"
        raise ContextLengthError(
            f"{sizes} exceed the context of {shape.config.context} tokens that this model supports"
        )
    watched = 0 if recipe.stop == Never() else answer
    trajectory = dry_run(recipe, prompt, window, watched, tokens_per_step, steps, shape.wrap)
    roofline = Roofline(shape, device, dtype)
    request = roofline.total(with_rows(one, rows) for step in trajectory for one in step)
    columns = prompt + window
    stored = stored_values(shape.config, columns) if recipe.cache.stores else 0
    working = working_values(shape.config, columns)
    weights = shape.parameters * dtype.itemsize
    per_row = (stored + working) * dtype.itemsize
    return Prediction(
        steps=len(trajectory),
        memory=Memory(weights, rows * stored * dtype.itemsize, rows * working * dtype.itemsize, device.memory),
        kinds=_kinds(trajectory, rows, roofline),
        step=request * (1 / len(trajectory)),
        request=request,
        rows=rows,
        rows_fit=None if device.memory is None else max(0, int((device.memory - weights) // per_row)),
        rows_useful=_useful_rows(trajectory, roofline),
    )


def with_rows(one: Pass, rows: int) -> Pass:
    """Return a pass over one row as a pass over `rows` rows."""
    return replace(one, rows=rows, read=one.read * rows)


def _kinds(trajectory: tuple[tuple[Pass, ...], ...], rows: int, roofline: Roofline) -> tuple[PassKind, ...]:
    passes = [one for step in trajectory for one in step]
    found = []
    for name, chosen in (
        ("whole text", [one for one in passes if one.whole]),
        ("part of the window", [one for one in passes if not one.whole]),
    ):
        if chosen:
            share = 1 / len(chosen)
            bound = roofline.total(with_rows(one, rows) for one in chosen) * share
            found.append(PassKind(name, len(chosen), sum(one.columns for one in chosen) * share, bound))
    return tuple(found)


def _useful_rows(trajectory: tuple[tuple[Pass, ...], ...], roofline: Roofline) -> int:
    """Return the first power of two beyond which twice the rows give less than a tenth more requests per second."""

    def rate(rows: int) -> float:
        return rows / roofline.total(with_rows(one, rows) for step in trajectory for one in step).seconds

    rows = 1
    while rows < MOST_ROWS and rate(2 * rows) >= 1.1 * rate(rows):
        rows *= 2
    return rows

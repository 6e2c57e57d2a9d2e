"""Measure accuracy on held-out problems, with full decoding or with a fixed number of steps."""

from __future__ import annotations

from numpy.random import Generator

from foretell.engine.request import Layout, Request, lay_out
from foretell.loop.decode import decode
from foretell.loop.protocols import Denoiser
from foretell.recipes.recipe import Recipe
from foretell.tasks import Task, draw
from foretell.train.batches import Encoder, TrainingRow


def measure_accuracy(
    model: Denoiser, encoder: Encoder, task: Task, count: int, rng: Generator, steps: int | None = None
) -> float:
    """Return the share of `count` held-out problems that are solved, with the answer after the reasoning.

    Without `steps`, decoding takes one step per token.
    """
    problems = draw(task, rng, count, test=True)
    recipe = Recipe(steps, block_length=task.block)
    requests = [build_request(encoder.lay_out(problem, task.window, pinned=False), recipe) for problem in problems]
    state = lay_out(requests, model.mask_id)
    for step in decode(model, state, recipe):
        state = step.after
    texts = encoder.tokenizer.decode_batch(state.window.tolist())
    return sum(task.check(problem, text) for problem, text in zip(problems, texts, strict=True)) / count


def build_request(row: TrainingRow, recipe: Recipe) -> Request:
    """Build a request with the row's prompt and an empty window, except for the tokens that the task gives."""
    given = tuple((offset, int(row.tokens[offset])) for offset, free in enumerate(row.free) if not free)
    return Request(tuple(row.prompt), Layout(len(row.tokens), given), recipe)

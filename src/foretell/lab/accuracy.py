"""Accuracy on held-out problems under full greedy decoding: one token a step, the surest first, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from foretell.lab.batches import Encoder, canvas
from foretell.lab.tasks import Task, draw
from foretell.models.transformer import Transformer


def accuracy(model: Transformer, encoder: Encoder, task: Task, count: int, rng: Generator) -> float:
    problems = draw(task, rng, count, test=True)
    windows = greedy(model, [encoder.prompt(p.prompt) for p in problems], task.window, task.block, encoder)
    texts = encoder.tokenizer.decode_batch(windows.tolist())
    return sum(task.check(p, text) for p, text in zip(problems, texts, strict=True)) / count


@torch.no_grad()
def greedy(model: Transformer, prompts: Sequence[Sequence[int]], window: int, block: int, encoder: Encoder) -> Tensor:
    """Filled windows [b, N]. Rows move in step, since each has as many tokens to fill as the others."""
    inputs = canvas(prompts, np.full((len(prompts), window), encoder.mask), encoder.eos)
    filled = inputs.canvas[:, -window:]  # a view: what is written here the next pass reads
    rows = torch.arange(len(prompts))
    for start in range(0, window, block):
        for _ in range(min(block, window - start)):
            row, at = filled[:, start : start + block].eq(encoder.mask).nonzero(as_tuple=True)
            logits = model(inputs)(row, at + start)  # [n, V]
            logits[:, encoder.mask] = -torch.inf
            sure, token = logits.log_softmax(-1).max(-1)
            sure, token, at = (each.view(len(prompts), -1) for each in (sure, token, at))
            best = sure.argmax(1)
            filled[rows, start + at[rows, best]] = token[rows, best]
    return filled

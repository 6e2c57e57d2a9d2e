"""Accuracy on held-out problems under full greedy decoding: one token a step, the surest first, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from foretell.lab.batches import Encoder, Row, canvas
from foretell.lab.tasks import Task, draw
from foretell.models.transformer import Transformer


def accuracy(model: Transformer, encoder: Encoder, task: Task, count: int, rng: Generator) -> float:
    problems = draw(task, rng, count, test=True)
    rows = [encoder.row(problem, task.window, pinned=False) for problem in problems]
    windows = greedy(model, rows, task.block, encoder)
    texts = encoder.tokenizer.decode_batch(windows.tolist())
    return sum(task.check(p, text) for p, text in zip(problems, texts, strict=True)) / count


@torch.no_grad()
def greedy(model: Transformer, rows: Sequence[Row], block: int, encoder: Encoder) -> Tensor:
    """Filled windows [b, N]. Rows move in step, since each block has as many tokens to fill in one as in the other."""
    begun = np.stack([np.where(row.free, encoder.mask, row.tokens) for row in rows])
    inputs = canvas([row.prompt for row in rows], begun, encoder.eos)
    count, window = begun.shape
    filled = inputs.canvas[:, -window:]  # a view: what is written here the next pass reads
    every = torch.arange(count)
    for start in range(0, window, block):
        here = filled[:, start : start + block]
        while (masked := here.eq(encoder.mask)).any():
            row, at = masked.nonzero(as_tuple=True)
            logits = model(inputs)(row, at + start)  # [n, V]
            logits[:, encoder.mask] = -torch.inf
            sure, token = logits.log_softmax(-1).max(-1)
            sure, token, at = (each.view(count, -1) for each in (sure, token, at))
            best = sure.argmax(1)
            here[every, at[every, best]] = token[every, best]
    return filled

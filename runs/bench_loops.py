"""Plain loops like those of released decoders (LLaDA, Prophet, Fast-dLLM's dual cache), and ours on the same weights.

The plain loops compute every column of their pass, every logit, and a softmax over all of them: in float32, as LLaDA's
code does today, or in float64, as its older copies and Fast-dLLM's code do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench_sizes import ANSWER, Size, Tell, decode_ours
from foretell.bench.timing import Instrumented, Stopwatch, Timings, time_in_turns
from foretell.engine.request import lay_out
from foretell.loop.protocols import Inputs
from foretell.models.packed import pack_weights, packed_share
from foretell.models.transformer import DenseKV, Transformer

THRESHOLD = 0.9  # of Fast-dLLM
THRESHOLDS = (7.5, 5.0, 2.5)  # of Prophet, high to low; random weights never reach them, so that all steps are taken
# Which recipe is compared with which loop; the number of steps is for those that have one.
RECIPES = {"LLaDA": "full steps={}", "Prophet": "prophet steps={}", "Fast-dLLM": "fast-dllm"}
BASELINES = {"float32": torch.float32, "float64": torch.float64}  # by the softmax
OURS = {"packed": None, "not packed": False}  # None: as `load` does by itself


def compute_logits(model: Transformer, canvas: Tensor, columns: Tensor, cache: DenseKV | None = None) -> Tensor:
    """Return the logits of the token at each of `columns` [1, q], without the mask token's. [1, q, V]"""
    every, at = torch.arange(canvas.shape[1])[None], torch.arange(columns.shape[1])
    readout = model(Inputs(canvas, every, torch.ones_like(canvas, dtype=torch.bool), columns, at[None], cache))
    logits: Tensor = readout(torch.zeros_like(at), at)[None]
    logits[..., model.mask_id] = -torch.inf
    return logits


def propose(logits: Tensor, softmax: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the best token of every column and its probability. [1, q] each"""
    tokens = logits.argmax(dim=-1)
    probabilities = F.softmax(logits.to(softmax), dim=-1)
    return tokens, probabilities.gather(-1, tokens[..., None]).squeeze(-1)


@torch.inference_mode()
def decode_like_llada(
    model: Transformer, canvas: Tensor, size: Size, steps: int, softmax: torch.dtype, answer: Sequence[int] = ()
) -> Tensor:
    """Fill the masks of a canvas [1, L] block by block, the most confident first.

    With an `answer`, some columns, fill all of them once its mean gap reaches Prophet's threshold.
    """
    canvas, length = canvas.clone(), canvas.shape[1]
    every, taken = torch.arange(length)[None], 0
    for start in range(length - size.window, length, size.block):
        end, in_steps = start + size.block, steps * size.block // size.window
        for step in range(in_steps):
            masked = canvas == model.mask_id
            logits = compute_logits(model, canvas, every)
            tokens, confidence = propose(logits, softmax)
            taken += 1
            if answer and settled(logits, answer, taken / steps):
                return torch.where(masked, tokens, canvas)
            confidence[:, end:] = -torch.inf
            confidence = torch.where(masked, confidence, -torch.inf)
            left = int(masked[:, start:end].sum())
            chosen = confidence.topk(-(-left // (in_steps - step)), dim=-1).indices
            canvas = canvas.scatter(1, chosen, tokens.gather(1, chosen))
    return canvas


def settled(logits: Tensor, answer: Sequence[int], progress: float) -> bool:
    """Prophet's check, one column after the other."""
    gaps: list[float] = []
    for column in answer:
        best, second = logits[0, column].topk(2).values
        gaps.append((best - second).item())
    high, mid, low = THRESHOLDS
    bar = high if progress < 0.33 else mid if progress < 0.67 else low
    return sum(gaps) / len(gaps) >= bar


@torch.inference_mode()
def decode_like_fast_dllm(model: Transformer, canvas: Tensor, size: Size, softmax: torch.dtype) -> Tensor:
    """Fill the masks of a canvas [1, L] with a dual cache: one pass over all columns per block, then over the block.

    Each pass fills every mask of the block above the threshold, and the most confident one.
    """
    canvas, length = canvas.clone(), canvas.shape[1]
    for start in range(length - size.window, length, size.block):
        end = start + size.block
        columns, cache = torch.arange(length)[None], model.new_cache(1, length)
        while bool((canvas[:, start:end] == model.mask_id).any()):
            tokens, confidence = propose(compute_logits(model, canvas, columns, cache), softmax)
            masked = canvas.gather(1, columns) == model.mask_id
            inside = masked & (columns >= start) & (columns < end)
            confidence = torch.where(inside, confidence, -torch.inf)
            chosen = confidence >= min(THRESHOLD, float(confidence.max()))
            canvas = canvas.scatter(1, columns, torch.where(chosen, tokens, canvas.gather(1, columns)))
            columns = torch.arange(start, end)[None]
    return canvas


def compare_with_loops(size: Size, steps: int, rounds: int, tell: Tell | None = None) -> dict[str, Any]:
    """(a) Return the time of each plain loop divided by ours, on the clock and in CPU seconds, and our own share."""
    models = {name: size.network() for name in OURS}
    for name, packed in OURS.items():
        pack_weights(models[name], packed)
    plain = models["not packed"]
    canvas = lay_out([size.request("full")], size.mask).canvas
    answer = range(canvas.shape[1] - ANSWER, canvas.shape[1])
    loops: dict[str, Callable[..., Tensor]] = {
        "LLaDA": partial(decode_like_llada, plain, canvas, size, steps),
        "Prophet": partial(decode_like_llada, plain, canvas, size, steps, answer=answer),
        "Fast-dLLM": partial(decode_like_fast_dllm, plain, canvas, size),
    }
    found: dict[str, Any] = {"size": asdict(size), "steps": steps, "packed": packed_share(models["packed"])}
    found["load"] = os.getloadavg()[0]
    for name, text in RECIPES.items():
        recipe = text.format(steps)
        ways = {softmax: partial(loops[name], softmax=kind) for softmax, kind in BASELINES.items()}
        ways |= {ours: partial(decode_ours, model, size, recipe) for ours, model in models.items()}
        timed = time_in_turns({f"{name}, {way}": function for way, function in ways.items()}, rounds, tell)
        result = _compare(dict(zip(ways, timed.values(), strict=True)), size.prompt)
        own = median(measure_own_share(models["packed"], size, recipe) for _ in range(rounds))
        found[name] = {"recipe": recipe, **result, "own": own}
    return found


def _compare(timed: dict[str, Timings[Tensor]], prompt: int) -> dict[str, Any]:
    windows = {name: one.result[:, prompt:] if name in BASELINES else one.result for name, one in timed.items()}
    same = min(float((windows[ours] == windows["float32"]).float().mean()) for ours in OURS)
    seconds = {name: {"wall": list(one.seconds), "cpu": list(one.cpu_seconds)} for name, one in timed.items()}
    ratios = {
        baseline: {
            ours: {
                "wall": timed[baseline].median / timed[ours].median,
                "cpu": timed[baseline].cpu_median / timed[ours].cpu_median,
            }
            for ours in OURS
        }
        for baseline in BASELINES
    }
    return {"same": same, "ratios": ratios, "seconds": seconds}


def measure_own_share(model: Transformer, size: Size, recipe: str) -> float:
    """Return the share of a decoding's time that is spent outside of the network and its head."""
    inside, whole = Stopwatch(), Stopwatch()
    with whole.running():
        decode_ours(Instrumented(model, inside.running, inside.running), size, recipe)
    return 1 - inside.seconds / whole.seconds

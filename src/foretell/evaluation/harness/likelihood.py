"""The likelihood of a text under a masked diffusion model: LLaDA's Monte-Carlo estimate of its bound.

Mask k of the n target tokens, with k uniform over 1..n: the sum of log p over the masked tokens, weighted by n / k, is
an unbiased estimate of the bound. The counts k are stratified over the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foretell.errors import RequestError
from foretell.loop.protocols import Denoiser, Inputs

SAMPLES = 128


@torch.inference_mode()
def log_likelihood(
    model: Denoiser,
    prompt: Sequence[int],
    target: Sequence[int],
    samples: int = SAMPLES,
    batch_size: int = 32,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> float:
    """Return the estimate of log p(target | prompt). One token needs only one sample."""
    if not target:
        raise RequestError("the target has no tokens, so there is no likelihood to estimate")
    size = len(target)
    masks = _draw_masks(size, 1 if size == 1 else samples, torch.Generator().manual_seed(seed)).to(device)
    whole = torch.tensor([*prompt, *target], device=device)
    starts = range(0, len(masks), batch_size)
    return sum((_weighted_sum(model, whole, masks[start : start + batch_size]) for start in starts), 0.0) / len(masks)


def _draw_masks(size: int, samples: int, generator: torch.Generator) -> Tensor:
    """Draw the target tokens that each sample masks. [samples, size]"""
    first = int(torch.randint(size, (1,), generator=generator))
    counts = (first + torch.arange(samples) * size // samples) % size + 1
    order = torch.rand(samples, size, generator=generator).argsort(dim=1)
    return order < counts[:, None]


def _weighted_sum(model: Denoiser, whole: Tensor, masks: Tensor) -> float:
    """Return the sum over samples of log p of the masked tokens, weighted by n / k."""
    rows, size = masks.shape
    canvas = whole.repeat(rows, 1)
    canvas[:, -size:][masks] = model.mask_id
    every = torch.arange(len(whole), device=whole.device).expand(rows, -1)
    inputs = Inputs(
        canvas=canvas,
        positions=every,
        attend=torch.ones_like(canvas, dtype=torch.bool),
        columns=every,
        wanted=every[:, -size:],
        prompt=len(whole) - size,
    )
    row, at = masks.nonzero(as_tuple=True)
    logits = model(inputs)(row, at).float()
    hidden = logits.log_softmax(-1).gather(1, whole[-size:][at][:, None]).squeeze(1)
    weight = size / masks.sum(dim=1)[row]
    return float((hidden * weight).double().sum())


def split_target(context: str, continuation: str) -> tuple[str, str]:
    """Move blanks from the end of the context to the continuation, whose first token includes them."""
    stripped = context.rstrip(" ")
    return stripped, context[len(stripped) :] + continuation

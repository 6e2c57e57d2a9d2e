"""Reductions over the vocabulary against torch's own."""

from __future__ import annotations

import pytest
import torch

from foretell.reductions import argmax, best_two, entropy, log_sum_exp


@pytest.mark.parametrize("vocabulary", [5, 64, 100, 1024, 126_464])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_to_torch(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocabulary)
    logits = (5 * torch.randn(9, vocabulary)).to(dtype)
    logits[:, 3] = -torch.inf
    logits[0, 4], logits[0, 1] = 50, 50  # a tie: the first wins, and the gap is 0
    kept, precise = logits.clone(), logits.to(torch.promote_types(dtype, torch.float32))
    first, second = logits.gather(-1, best_two(logits)).unbind(-1)
    assert torch.equal(argmax(logits), precise.argmax(-1))
    assert int(argmax(logits)[0]) == 1
    assert torch.equal(torch.stack([first, second], -1), logits.topk(2).values)
    assert float(first[0] - second[0]) == 0
    exact = logits.double()
    assert torch.allclose(log_sum_exp(logits).double(), exact.logsumexp(-1), rtol=1e-5)
    assert torch.allclose(entropy(logits).double(), torch.special.entr(exact.softmax(-1)).sum(-1), rtol=1e-4, atol=1e-5)
    assert torch.equal(logits, kept)

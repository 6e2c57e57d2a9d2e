"""Reductions over the vocabulary against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretell.loop import reductions
from foretell.loop.reductions import Reductions


@pytest.mark.parametrize("vocabulary", [5, 64, 100, 1024, 126_464])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_to_torch(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocabulary)
    logits = (5 * torch.randn(9, vocabulary)).to(dtype)
    logits[:, 3] = -torch.inf
    logits[0, 4], logits[0, 1] = 50, 50  # a tie: the first wins, and the gap is 0
    kept, precise = logits.clone(), logits.to(torch.promote_types(dtype, torch.float32))
    found = Reductions(logits)
    first, second = found.of(found.best_two).unbind(-1)
    assert torch.equal(found.best, precise.argmax(-1))
    assert int(found.best[0]) == 1
    assert torch.equal(found.best, found.best_two[:, 0])
    assert not (found.best_two[:, 0] == found.best_two[:, 1]).any()
    assert torch.equal(torch.stack([first, second], -1), precise.topk(2).values)
    assert float(first[0] - second[0]) == 0
    exact = logits.double()
    assert torch.allclose(found.normaliser.double(), exact.logsumexp(-1), rtol=1e-5)
    assert torch.allclose(found.entropy.double(), torch.special.entr(exact.softmax(-1)).sum(-1), rtol=1e-4, atol=1e-5)
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("size", [64, 6])
def test_the_runner_up_may_stand_anywhere(size: int) -> None:
    """In the winner's own group in front of it or behind, or in another; of equals the first."""
    for winner, second, third in ((0, 1, 5), (5, 4, 3), (5, 2, 2 * size), (2 * size, 1, 3), (1, 2 * size + 1, 0)):
        logits = torch.zeros(1, 3 * size)
        logits[0, [winner, second, third]] = torch.tensor([3.0, 2.0, 1.0])
        assert Reductions(logits).best_two.tolist() == [[winner, second]]
        logits[0, third] = 2.0
        assert Reductions(logits).best_two.tolist() == [[winner, min(second, third)]]


def test_what_is_asked_for_first_changes_nothing() -> None:
    logits = torch.randn(7, 640) * 4
    one, other = Reductions(logits), Reductions(logits)
    pairs = [(one.normaliser, one.entropy), (*reversed((other.entropy, other.normaliser)),)]
    for first, second in zip(*pairs, strict=True):
        assert torch.equal(first, second)


def test_rows_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 640) * 4
    whole = Reductions(logits).normaliser
    sizes: list[int] = []

    def noted(part: Tensor, top: Tensor, best: Tensor) -> Tensor:
        sizes.append(len(part))
        return weigh(part, top, best)

    weigh = reductions._normaliser
    monkeypatch.setattr(reductions, "_normaliser", noted)
    monkeypatch.setattr(reductions, "CHUNK", 2 * 640)
    assert torch.allclose(Reductions(logits).normaliser, whole)
    assert sizes == [2, 2, 2, 1]

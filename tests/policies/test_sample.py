"""Sampling: the right distribution, and draws that depend on nothing but seed, step and position."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import RecipeError
from foretell.loop.protocols import Sample
from foretell.loop.reductions import Reductions
from foretell.loop.state import DecodeState
from foretell.policies.sample.greedy import Greedy
from foretell.policies.sample.gumbel import Gumbel
from foretell.policies.sample.nucleus import Nucleus
from foretell.recipes.recipe import Recipe

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
COUNT = 20_000


def state_of(seed: int = 0) -> DecodeState:
    return lay_out([Request((1,), Layout(COUNT), Recipe(), seed)], mask_id=0)


def draw(sample: Sample, state: DecodeState, logits: Tensor = LOGITS) -> Tensor:
    position = torch.arange(COUNT)
    return sample(Reductions(logits.expand(COUNT, -1).clone()), state, torch.zeros_like(position), position)


@pytest.mark.parametrize(
    ("sample", "probs"),
    [
        (Gumbel(1.0), LOGITS.softmax(0)),
        (Gumbel(0.5), (LOGITS / 0.5).softmax(0)),
        (Nucleus(1.0), LOGITS.softmax(0)),
        (Nucleus(2.0), (LOGITS / 2).softmax(0)),
        (Nucleus(1.0, top_k=2), torch.cat([LOGITS[:2].softmax(0), torch.zeros(4)])),
        (Nucleus(1.0, top_p=0.7), torch.cat([LOGITS[:2].softmax(0), torch.zeros(4)])),
        (Nucleus(1.0, top_p=0.0), torch.tensor([1.0, 0, 0, 0, 0, 0])),
    ],
)
def test_distribution(sample: Sample, probs: Tensor) -> None:
    seen = draw(sample, state_of()).bincount(minlength=6) / COUNT
    assert torch.allclose(seen, probs, atol=4 * 0.5 / COUNT**0.5)
    assert (seen[probs == 0] == 0).all()


def test_zero_temperature_is_greedy() -> None:
    logits = Reductions(torch.randn(COUNT, 6, generator=torch.Generator().manual_seed(0)))
    where = torch.zeros(COUNT, dtype=torch.long), torch.arange(COUNT)
    for sample in (Gumbel(0.0), Nucleus(0.0, 0.5, 3)):
        assert torch.equal(sample(logits, state_of(), *where), Greedy()(logits, state_of(), *where))


@pytest.mark.parametrize("sample", [Gumbel(1.0), Nucleus(1.0, 0.9)])
def test_draws_depend_on_seed_step_and_position(sample: Sample) -> None:
    first = draw(sample, state_of(1))
    assert torch.equal(first, draw(sample, state_of(1)))
    assert not torch.equal(first, draw(sample, state_of(2)))
    start = state_of(1)
    later = start.with_text(step=start.step + 1)
    assert not torch.equal(first, draw(sample, later))
    assert len(set(first.tolist())) > 1
    some = torch.tensor([17, 3, 901])
    alone = sample(Reductions(LOGITS.expand(3, -1).clone()), state_of(1), torch.zeros_like(some), some)
    assert torch.equal(alone, first[some])


def test_banned_tokens_are_never_drawn() -> None:
    logits = LOGITS.clone()
    logits[0] = -torch.inf
    for sample in (Greedy(), Gumbel(3.0), Nucleus(3.0)):
        assert not (draw(sample, state_of(), logits) == 0).any()


@pytest.mark.parametrize("make", [lambda: Gumbel(-1), lambda: Nucleus(top_p=1.5), lambda: Nucleus(top_k=-2)])
def test_bad_parameters(make: object) -> None:
    with pytest.raises(RecipeError, match="must be"):
        make()  # type: ignore[operator]

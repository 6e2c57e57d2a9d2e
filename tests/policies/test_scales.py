"""A threshold on log-odds or on ranks stops where those measures say, and is spelled in a recipe."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import foretell
from foretell.errors import RecipeError
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.scales import LogOdds, Ranks
from foretell.policies.stop.schedules import Linear
from tests.policies.test_judge import traces

FLAT = Ranks(1.0, 2.0, 4.0, 6.0, 8.0)


def test_log_odds_are_those_of_the_proposed_token() -> None:
    (trace, *_) = traces(foretell.parse("full"))
    chance = trace.confidence.double().clamp(1e-6, 1 - 1e-6)
    assert torch.allclose(LogOdds()(trace).double(), (chance / (1 - chance)).log(), atol=1e-3)
    sure = replace(trace, confidence=torch.ones_like(trace.confidence))
    assert LogOdds()(sure).isfinite().all(), "a rounded chance of 1 is no infinite certainty"


def test_ranks_rise_through_their_quantiles() -> None:
    (trace, *_) = traces(foretell.parse("full"))
    gaps = torch.tensor([[0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 12.0, 40.0]])
    found = FLAT(replace(trace, gap=gaps))[0].tolist()
    assert found[:7] == pytest.approx([0, 0.05, 0.1, 0.25, 0.375, 0.5, 0.9], abs=1e-6)
    assert found[7] == pytest.approx(1 - 0.1 * math.exp(-1), abs=1e-6)
    assert found[7] < found[8] < 1
    same = Ranks(0.0, 0.0, 0.0, 0.0, 0.0)(replace(trace, gap=gaps))
    assert same.isfinite().all(), "equal quantiles divide nothing by nothing"


def test_ranks_are_fitted() -> None:
    fitted = Ranks.of(torch.arange(101.0).flip(0).view(1, -1))
    assert fitted.quantiles == (10, 25, 50, 75, 90)
    assert Ranks.of(3 * torch.arange(101.0)).q50 == 150, "another scale of gaps is another fit, with the same ranks"
    with pytest.raises(RecipeError, match="got none"):
        Ranks.of(torch.empty(0))
    with pytest.raises(RecipeError, match="must not decrease, got 2"):
        Ranks(2.0, 1.0)
    with pytest.raises(RecipeError, match="q10 must be at least 0"):
        Ranks(-1.0)


@pytest.mark.parametrize(("scale", "bar"), [(LogOdds(), -1.5), (FLAT, 0.2)])
def test_prophet_on_a_scale(scale: LogOdds | Ranks, bar: float) -> None:
    differs = 0
    for trace in traces(foretell.parse("full")):
        rule = Prophet(Linear(bar, bar), reduce="min", scale=scale)
        verdict = rule(trace, trace.states())
        assert torch.equal(verdict.settled, scale(trace)[:, 9:].min(dim=1).values >= bar)
        assert verdict.measure == f"min {scale.measure}"
        plain = replace(rule, scale=Prophet().scale)
        differs += not torch.equal(verdict.settled, plain(trace, trace.states()).settled)
    assert differs, "a scale changes where it stops"


def test_scales_are_spelled() -> None:
    recipe = foretell.parse("prophet stop.scale=log_odds stop.reduce=min")
    assert recipe.stop == Prophet(reduce="min", scale=LogOdds())
    assert foretell.parse(str(recipe)) == recipe
    ranks = foretell.parse("full stop=prophet(tau=linear(0.9,0.9),scale=ranks(1,2,4,6,8))")
    assert ranks.stop == Prophet(Linear(0.9, 0.9), scale=FLAT)
    assert foretell.parse(str(ranks)) == ranks
    assert str(foretell.parse("prophet")) == "full stop=prophet", "the gap is not spelled"
    with pytest.raises(RecipeError, match="unknown scale 'logodds'"):
        foretell.parse("prophet stop.scale=logodds")

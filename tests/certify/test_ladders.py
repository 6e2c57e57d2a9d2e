"""Bars lie on the model's own scale, and the numbers of recipes on grids."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.certify.ladders import MEASURES, TOLERANCES, TRANSFERS, ModelScale, round_share, round_size
from foretell.recipes.presets import parse
from foretell.recipes.text import format_value

STEPS, WIDTH = 40, 25


def planted(wrong: float, seed: int = 0) -> Any:
    """Return a trace in which the share `wrong` of drafts changes later; one column is never open."""
    rng = torch.Generator().manual_seed(seed)
    open_masks = torch.ones(STEPS, WIDTH, dtype=torch.bool)
    open_masks[:, -1] = False
    changed = torch.rand(STEPS, WIDTH, generator=rng) < wrong
    changed[-1] = False
    measures = {name: torch.rand(STEPS, WIDTH, generator=rng) for name in MEASURES}
    for name in MEASURES:
        measures[name][:, -1] = 5.0  # where no mask is open, nothing is looked at
    return SimpleNamespace(
        tokens=torch.where(changed, 7, 1), states=lambda: SimpleNamespace(eligible=open_masks), **measures
    )


def test_a_bar_lets_a_share_of_the_wrong_drafts_pass() -> None:
    traces = [planted(0.3, seed) for seed in range(8)]
    scale = ModelScale.of(traces)
    seen = {
        name: torch.cat([getattr(one, name)[:, :-1].flatten() for one in traces]).numpy().astype(float)
        for name in MEASURES
    }
    wrong = torch.cat([(one.tokens == 7)[:, :-1].flatten() for one in traces]).numpy()
    assert (scale.drafts, scale.wrong) == (len(wrong), wrong.sum())
    assert scale.drafts == 8 * STEPS * (WIDTH - 1)
    for level, tolerance in enumerate(TOLERANCES):
        for name in MEASURES:
            bar, values = scale.bar(name, level), seen[name][wrong]
            passed = values <= bar if name == "entropy" else values >= bar
            assert passed.mean() == pytest.approx(tolerance, abs=1.5 / len(values))
            assert bar == scale.bars[name][level]
            right = seen[name][~wrong]
            same = right <= scale.right[name][level] if name == "entropy" else right >= scale.right[name][level]
            assert same.mean() == pytest.approx(tolerance, abs=1.5 / len(right))


def test_bars_go_from_safe_to_fast() -> None:
    assert list(TOLERANCES) == sorted(TOLERANCES)
    assert (TOLERANCES[0], TOLERANCES[-1]) == (2**-14, 0.5)
    scale = ModelScale.of([planted(0.3)])
    for name in MEASURES:
        bars = list(scale.bars[name])
        assert bars == sorted(bars, reverse=name != "entropy")
        assert len({*bars}) > 10


def test_without_a_wrong_draft_the_bar_is_the_most_certain_one() -> None:
    trace = planted(0.0)
    scale = ModelScale.of([trace])
    assert scale.wrong == 0
    for name in MEASURES:
        values = getattr(trace, name)[:, :-1]
        best = float(values.min() if name == "entropy" else values.max())
        assert scale.bars[name] == pytest.approx([best] * len(TOLERANCES))


@pytest.mark.parametrize("name", TRANSFERS)
def test_transfers_are_valid_at_every_level(name: str) -> None:
    """Also at the ends of what a model can be: never sure, or always sure."""
    kind = TRANSFERS[name]
    certain = {"confidence": (0.0, 1.0), "entropy": (11.0, 0.0)}[kind.measure]
    scale = ModelScale.of([planted(0.3)])
    bars = [*certain, *(scale.bar(kind.measure, level) for level in range(len(TOLERANCES)))]
    for bar in bars:
        text = format_value(kind.make(bar))
        assert parse(f"full transfer={text}").transfer == kind.make(bar)
        assert parse(f"full transfer={text}").transfer.parallel


def test_transfers_that_fill_one_mask_agree_on_the_bar() -> None:
    """`factor` and `frechet` fill a single mask exactly where `threshold` does, up to rounding."""
    for bar in (0.6, 0.9, 0.99, 0.9999):
        share, factor, margin = (format_value(TRANSFERS[name].make(bar)) for name in ("threshold", "factor", "frechet"))
        number = [float(one.split("=")[-1].strip("()").split("(")[-1]) for one in (share, factor, margin)]
        assert 1 - number[0] == pytest.approx(1 - bar, rel=0.07)
        assert number[1] == pytest.approx(2 * (1 - bar), rel=0.07)
        assert number[2] == pytest.approx(2 * number[0] - 1)


@given(st.floats(0, 1))
def test_shares_are_rounded_inside_0_and_1(value: float) -> None:
    found = round_share(value)
    assert 0 < found < 1
    assert round_share(found) == found
    assert len(str(found)) <= 12
    inside = min(max(value, 1e-7), 1 - 1e-7)
    odds = [math.log(one / (1 - one)) for one in (inside, found)]
    assert odds[0] == pytest.approx(odds[1], abs=0.07)


@given(st.floats(0, 1e6))
def test_sizes_are_rounded_above_0(value: float) -> None:
    found = round_size(value)
    assert found > 0
    assert round_size(found) == found
    assert math.log(found) == pytest.approx(math.log(max(value, 1e-7)), abs=0.07)
    assert len(f"{found:g}") <= 9


def test_rounding_keeps_the_order() -> None:
    shares = [round_share(float(one)) for one in np.linspace(0, 1, 2001)]
    sizes = [round_size(float(one)) for one in np.geomspace(1e-8, 1e4, 2001)]
    assert shares == sorted(shares)
    assert sizes == sorted(sizes)
    assert len({*shares}) > 50


def test_levels_below_the_scale_halve_the_odds_of_a_wrong_draft() -> None:
    bars = {"confidence": (0.9, 0.5), "gap": (3.0, 1.0), "entropy": (0.2, 0.8)}
    scale = ModelScale(bars, bars, drafts=9, wrong=3)
    assert scale.bar("confidence", -2) == pytest.approx(0.95)
    assert scale.bar("confidence", -12) == pytest.approx(1 - 0.1 / 64)
    assert scale.bar("gap", -2) == pytest.approx(3 + math.log(2))
    assert scale.bar("entropy", -4) == pytest.approx(0.05)


def test_levels_between_two_tolerances_lie_between_their_bars() -> None:
    bars = {"confidence": (0.999, 0.9), "gap": (6.0, 4.0), "entropy": (0.01, 0.09)}
    scale = ModelScale(bars, bars, drafts=2, wrong=1)
    assert scale.bar("confidence", 0.5) == pytest.approx(0.99)
    assert scale.bar("gap", 0.25) == pytest.approx(5.5)
    assert scale.bar("entropy", 0.5) == pytest.approx(0.03)
    assert [scale.bar(name, 1) for name in bars] == pytest.approx([0.9, 4.0, 0.09])

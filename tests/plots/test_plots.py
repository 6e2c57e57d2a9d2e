"""Pictures show the numbers they are given, and the numbers they gather are right."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import pytest
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from foretell.plots import ablations, gaps, histograms, judge, risk, stops
from foretell.policies.stop.schedules import Staged


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(figure: Figure) -> bool:
    file = io.BytesIO()
    figure.savefig(file, dpi=40)
    return file.tell() > 1000


def test_a_step_ends_where_the_budget_says() -> None:
    assert histograms.progress([0, 15, 63], 64) == [100 / 64, 25.0, 100.0]


def test_shares_hold_their_mark() -> None:
    values = histograms.progress([0, 15, 16, 63], 64)
    assert histograms.share_by(values, 25) == 0.5
    assert histograms.share_by(values, 100) == 1.0
    assert histograms.share_after(values, 25) == 0.5
    assert histograms.share_by([], 25) is None
    assert histograms.share_after([], 25) is None


@pytest.mark.parametrize("total", [24, 32, 61, 64, 96])
def test_bars_add_up_to_the_shares(total: int) -> None:
    values = histograms.progress(list(range(total)), total)
    bars = histograms.heights(values)
    assert len(bars) == 20
    assert sum(bars) == pytest.approx(100)
    for mark in (25, 50, 70):
        share = histograms.share_by(values, mark)
        assert share is not None
        assert sum(bars[: mark // 5]) == pytest.approx(100 * share)


def test_no_values_are_empty_bars() -> None:
    assert histograms.heights([]) == [0] * 20


def test_histograms_draw_one_panel_each_also_of_nothing() -> None:
    panels = [
        histograms.Panel("some", {"right": [5.0, 50.0], "wrong": [100.0]}),
        histograms.Panel("none", {"right": [], "wrong": []}),
        histograms.Panel("one group", {"right": [50.0]}),
    ]
    figure = histograms.histograms(panels, 2, "% of the steps", (25, 50))
    shown = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert shown == ["some", "none", "one group"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["50%", "0%", "100%", "0%"]
    assert not figure.axes[1].texts
    assert drawn(figure)


POINT = ablations.Point("baseline", 61.0, 0.8, 0.7, 0.95)


def test_errors_reach_to_the_interval() -> None:
    below, above = ablations.errors([POINT, replace(POINT, accuracy=1.0, low=0.9, high=1.0)])
    assert below == pytest.approx([10, 10])
    assert above == pytest.approx([15, 0])


def test_bars_are_as_high_as_the_accuracies_and_carry_their_steps() -> None:
    other = replace(POINT, name="Prophet", accuracy=0.6, low=0.5, high=0.7, steps=30.4)
    axes = plt.figure().subplots()
    ablations.bars(axes, {"8": [POINT, other], "16": [other, POINT]})
    assert sorted(bar.get_height() for bar in axes.patches) == pytest.approx([60, 60, 80, 80])
    assert sorted(text.get_text() for text in axes.texts) == ["30", "30", "61", "61"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]


def test_seven_ways_have_seven_bars_of_their_own_colour() -> None:
    axes = plt.figure().subplots()
    ablations.bars(axes, {"word": [replace(POINT, name=str(index)) for index in range(7)]})
    assert len({bar.get_facecolor() for bar in axes.patches}) == 7


def test_ablations_draw_four_panels() -> None:
    other = replace(POINT, name="Prophet", steps=30.0)
    lines = {"window 64": [replace(POINT, steps=steps) for steps in (4, 8, 61)]}
    groups = {"8": [POINT, other], "16": [POINT, other]}
    figure = ablations.ablations(lines, {"window 64": [other]}, groups, groups, {"mean": [POINT, other]})
    assert len(figure.axes) == 4
    assert drawn(figure)
    assert drawn(ablations.comparison(groups, "block length"))


def test_risks_draw_a_panel_for_each_task_with_points_where_they_belong() -> None:
    points = [stops.Stopped("fixed", "mean", 2.0, 0.1, 0.05, 0.2), stops.Stopped("boxed", "min", 3.0, 0.0, 0.0, 0.1)]
    figure = stops.risks({"a": points, "b": points[:1], "c": points, "d": points})
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["a", "b", "c", "d"]
    lines = [line for line in shown[0].lines if line.get_marker() in stops.MARKERS]
    assert [line.get_xydata().tolist() for line in lines] == [[[2.0, 10.0]], [[3.0, 0.0]]]  # type: ignore[union-attr]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fixed, mean", "boxed, min"]


def test_a_band_is_taken_over_the_curves_that_last() -> None:
    curves = [torch.tensor([float(height)] * 3) for height in range(11)]
    low, middle, high = gaps.band([*curves, torch.tensor([5.0])])
    assert middle.tolist() == [5.0, 5.0, 5.0]
    assert low[1:].tolist() == [1.0, 1.0]
    assert high[1:].tolist() == [9.0, 9.0]
    assert len(low) == 3


def test_a_band_leaves_out_what_is_not_finite() -> None:
    found = gaps.band([torch.tensor([1.0, math.inf]), torch.tensor([3.0, 4.0])])
    assert found[1].tolist() == [2.0, 4.0]


def test_bins_hold_their_lower_edge_and_count_every_exit_once() -> None:
    bins = gaps.binned([(1.0, True), (2.5, False), (5.0, True), (7.4, True), (99.0, False)])
    assert [one.n for one in bins] == [2, 2, 0, 0, 1]
    assert [one.agreed for one in bins] == [1, 2, 0, 0, 0]
    assert [one.share for one in bins] == [0.5, 1.0, None, None, 0.0]


def test_gaps_draw_three_rows_also_when_nothing_ended_wrong() -> None:
    curves = {"right": [torch.linspace(0, 9, 61)], "wrong": []}
    bins = gaps.binned([(3.0, True), (8.0, True)])
    ends = [(0.2, 1.0) if one.n else None for one in bins]
    panel = gaps.Panel(
        "word", 64, Staged(), {"mean": curves, "min": curves}, {"mean": bins, "min": bins}, {"mean": ends, "min": ends}
    )
    higher = {"right": [torch.linspace(0, 20, 61)], "wrong": []}
    figure = gaps.gaps([panel, replace(panel, curves={"mean": higher, "min": higher})])
    assert figure.axes[0].get_ylim()[1] >= 20  # a row has one scale, in which every task fits
    assert len(figure.axes) == 6
    assert drawn(figure)
    threshold: Any = figure.axes[0].lines[-1].get_ydata()
    assert (float(threshold[0]), float(threshold[-1])) == (7.5, 2.5)


def test_risk_draws_a_column_a_task_and_hides_nothing_below_the_top() -> None:
    line = risk.Line((1.0, 2.0, 3.0), (0.0, 0.01, 0.5), ((1.2, 0.0), (1.5, 0.01)), (2.0, 0.01), (0.0, 0.04), (0.5, 0.6))
    wild = replace(line, published=(3.0, 0.5))
    panels = [risk.Panel("word", {"mean": line, "min": wild}), risk.Panel("choice", {"mean": line})]
    figure = risk.risk(panels, (0.005, 0.05), 0.05)
    assert len(figure.axes) == 4
    above, below = figure.axes[0], figure.axes[2]
    crosses = [one for one in above.lines if one.get_marker() == "x"]
    assert len(crosses) == 1, "published thresholds off the scale are left out"
    assert above.get_xlim()[1] == pytest.approx(1.04 * 2.0), "only what is below the top counts"
    dots: Any = below.lines[0].get_ydata()
    assert [float(dot) for dot in dots] == [0, 4]
    assert drawn(figure)


def test_judged_sorts_features_and_draws_a_bar_a_rule() -> None:
    looks = {"word": {"gap": 0.1, "entropy": 0.5}, "choice": {"gap": 0.2, "entropy": 0.0}}
    figure = judge.judged(looks, {"word": {"judge": 1.5, "gap": 1.2}, "choice": {"judge": 2.5, "gap": 2.0}}, 0.01)
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["gap", "entropy"], "the weightiest on top"
    bars: Any = right.patches
    assert [bar.get_height() for bar in bars] == [1.5, 2.5, 1.2, 2.0]
    assert "1%" in right.get_title()
    assert drawn(figure)

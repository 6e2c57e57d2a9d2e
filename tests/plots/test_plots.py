"""Pictures show the numbers they are given, and the numbers they gather are right."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import matplotlib as mpl
import pytest
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

from foretell.engine.request import Layout, Request
from foretell.engine.trace import Trace
from foretell.plots import ablations, colours, dynamics, frontier, gaps, histograms, judge, labels, risk, stops
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear, Staged


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def drawn(figure: Figure) -> bool:
    file = io.BytesIO()
    figure.savefig(file, dpi=40)
    return file.tell() > 1000


def apart(boxes: Sequence[Any]) -> None:
    """No two of the boxes on the page lie over each other."""
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other), (one, other)


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
    bars = histograms.bar_heights(values)
    assert len(bars) == 20
    assert sum(bars) == pytest.approx(100)
    for mark in (25, 50, 70):
        share = histograms.share_by(values, mark)
        assert share is not None
        assert sum(bars[: mark // 5]) == pytest.approx(100 * share)


def test_no_values_are_empty_bars() -> None:
    assert histograms.bar_heights([]) == [0] * 20


def test_histograms_draw_one_panel_each_also_of_nothing() -> None:
    panels = [
        histograms.HistogramPanel("some", {"right": [5.0, 50.0], "wrong": [100.0]}),
        histograms.HistogramPanel("none", {"right": [], "wrong": []}),
        histograms.HistogramPanel("one group", {"right": [50.0]}),
    ]
    figure = histograms.plot_histograms(panels, 2, "% of the steps", (25, 50))
    shown = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert shown == ["some", "none", "one group"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["50%", "0%", "100%", "0%"]
    assert not figure.axes[1].texts
    assert figure.axes[0].get_ylim() == (0, 100), "no share is larger"
    assert drawn(figure)


def test_histograms_print_nothing_over_anything() -> None:
    panel = histograms.HistogramPanel("some\n2 right", {"right": [50.0, 100.0], "wrong": [100.0]})
    figure = histograms.plot_histograms(
        [panel] * 4, 4, "% of the steps (numbers: the share up to a line)", (25, 50, 70)
    )
    figure.draw_without_rendering()
    words = [text for axes in figure.axes for text in (*axes.texts, axes.title)]
    supxlabel: Any = figure._supxlabel  # type: ignore[attr-defined]
    apart([text.get_window_extent() for text in [*words, supxlabel, figure.legends[0]]])
    assert all(text.get_window_extent().y0 > figure.axes[0].get_window_extent().y1 for text in words)


POINT = ablations.Point("baseline", 61.0, 0.8, 0.7, 0.95)


def test_errors_reach_to_the_interval() -> None:
    below, above = ablations.error_bars([POINT, replace(POINT, accuracy=1.0, low=0.9, high=1.0)])
    assert below == pytest.approx([10, 10])
    assert above == pytest.approx([15, 0])


def test_bars_are_as_high_as_the_accuracies_and_carry_their_steps() -> None:
    other = replace(POINT, name="Prophet", accuracy=0.6, low=0.5, high=0.7, steps=30.4)
    axes = plt.figure().subplots()
    ablations.draw_bars(axes, {"8": [POINT, other], "16": [other, POINT]})
    assert sorted(bar.get_height() for bar in axes.patches) == pytest.approx([60, 60, 80, 80])
    assert sorted(text.get_text() for text in axes.texts) == ["30", "30", "61", "61"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16"]


def test_seven_ways_have_seven_bars_of_their_own_colour() -> None:
    axes = plt.figure().subplots()
    ablations.draw_bars(axes, {"word": [replace(POINT, name=str(index)) for index in range(7)]})
    assert len({bar.get_facecolor() for bar in axes.patches}) == 7


def test_ablations_draw_four_panels() -> None:
    other = replace(POINT, name="Prophet", steps=30.0)
    lines = {"window 64": [replace(POINT, steps=steps) for steps in (4, 8, 61)]}
    groups = {"8": [POINT, other], "16": [POINT, other]}
    figure = ablations.plot_ablations(lines, {"window 64": [other]}, groups, groups, {"mean": [POINT, other]})
    assert len(figure.axes) == 4
    assert drawn(figure)
    assert drawn(ablations.plot_comparison(groups, "block length"))


def test_risks_draw_a_panel_for_each_task_with_a_row_for_each_way() -> None:
    points = [stops.Stopped("fixed", "mean", 2.0, 0.1, 0.05, 0.2), stops.Stopped("boxed", "min", 3.0, 0.1, 0.0, 0.2)]
    figure = stops.plot_stops({"a": points, "b": points[:1], "c": points, "d": points})
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["a", "b", "c", "d"]
    assert [label.get_text() for label in shown[0].get_yticklabels()] == ["fixed, mean", "boxed, min"]
    lines = [line for line in shown[0].lines if line.get_marker() in stops.MARKERS]
    assert [line.get_xydata().tolist() for line in lines] == [[[10.0, 0]], [[10.0, 1]]]  # type: ignore[union-attr]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 2
    assert [text.get_text() for text in shown[0].texts] == ["2.00x", "3.00x", "speedup"]
    assert [text.get_text() for text in shown[1].texts] == ["2.00x", "-", "speedup"], "b does not have the second"
    assert drawn(figure)


WAYS = [
    frontier.Spot("full", 1.0, 0.95, False),
    frontier.Spot("dear", 1.0, 0.90, False),
    *(frontier.Spot(f"way {index}", 10 + index / 20, 0.95 - index / 500, True) for index in range(12)),
    frontier.Spot("wild", 20.0, 0.10, True),
]


def test_numbers_on_the_frontier_cover_neither_each_other_nor_a_point() -> None:
    figure = frontier.plot_frontier({"word": WAYS, "choice": WAYS[:5]}, "columns", 0.005, ("full", "dear", "missing"))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without its leader
    assert len(boxes) == 14, "two that are named, twelve that nothing beats; neither the missing nor the wild one"
    apart(boxes)
    places = [axes.transData.transform((spot.saving, 100 * spot.accuracy)) for spot in WAYS[:-1]]
    assert not any(box.contains(*place) for box in boxes for place in places)
    shown = [text.get_text() for text in figure.legends[1].get_texts()]
    assert shown[:3] == ["1  full", "2  dear", "3  way 0"]
    assert drawn(figure)


def test_a_way_has_the_same_number_in_every_panel() -> None:
    assert frontier.number_ways({"a": WAYS[:3], "b": WAYS[:4]}, ("dear",)) == {"dear": 1, "way 0": 2, "way 1": 3}


def test_labels_take_the_nearest_free_place() -> None:
    inside = labels.Box(0, 0, 200, 200)
    (alone,) = labels.place_labels([(0, 0)], [(6, 6)], inside, [labels.Box(0, 0, 5, 5)])
    assert (alone.x, alone.y) == (0, labels.RADII[0]), "right above"
    wall = [labels.Box(0, 0, 5, 5), labels.Box(0, 51, 200, 100)]
    (below,) = labels.place_labels([(0, 0)], [(6, 6)], inside, wall)
    assert below.y < 0
    (pushed,) = labels.place_labels([(0, 99)], [(6, 6)], inside, [])
    assert pushed.within(inside)


def test_dynamics_dim_what_lies_behind_the_exit() -> None:
    rising = torch.arange(5.0)[:, None].expand(5, 5)
    request = Request((1,), Layout(5, answer=(3, 2)))
    ones = torch.ones(5, 5, dtype=torch.long)
    finished = Trace(request, 0, (), ones, rising, rising, rising, rising, torch.arange(5), settled=False)
    figure = dynamics.plot_dynamics([("some", finished)], Prophet(Linear(1.0, 1.0), reduce="min"))
    heat, gap = figure.axes
    assert gap.get_title() == "the rule stops at step 2 of 5"
    for axes in (heat, gap):
        (veil,) = [patch for patch in axes.patches if patch.get_alpha() == dynamics.DIM]
        assert veil.get_extents().transformed(axes.transData.inverted()).x0 == pytest.approx(2.5)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "gap, min over the answer" in names, "says which gap it is"
    never = dynamics.plot_dynamics([("some", finished)], Prophet(Linear(math.inf, math.inf)))
    assert never.axes[1].get_title() == "the rule never stops"
    assert not [patch for patch in never.axes[0].patches if patch.get_alpha() == dynamics.DIM]
    assert drawn(figure)


def test_a_band_is_taken_over_the_curves_that_last() -> None:
    curves = [torch.tensor([float(height)] * 3) for height in range(11)]
    low, middle, high = gaps.quantile_band([*curves, torch.tensor([5.0])])
    assert middle.tolist() == [5.0, 5.0, 5.0]
    assert low[1:].tolist() == [1.0, 1.0]
    assert high[1:].tolist() == [9.0, 9.0]
    assert len(low) == 3


def test_a_band_leaves_out_what_is_not_finite() -> None:
    found = gaps.quantile_band([torch.tensor([1.0, math.inf]), torch.tensor([3.0, 4.0])])
    assert found[1].tolist() == [2.0, 4.0]


def test_bins_hold_their_lower_edge_and_count_every_exit_once() -> None:
    bins = gaps.bin_exits([(1.0, True), (2.5, False), (5.0, True), (7.4, True), (99.0, False)])
    assert [one.n for one in bins] == [2, 2, 0, 0, 1]
    assert [one.agreed for one in bins] == [1, 2, 0, 0, 0]
    assert [one.share for one in bins] == [0.5, 1.0, None, None, 0.0]


def test_gaps_draw_three_rows_also_when_nothing_ended_wrong() -> None:
    curves = {"right": [torch.linspace(0, 9, 61)], "wrong": []}
    bins = gaps.bin_exits([(3.0, True), (8.0, True)])
    ends = [(0.2, 1.0) if one.n else None for one in bins]
    panel = gaps.GapPanel(
        "word", 64, Staged(), {"mean": curves, "min": curves}, {"mean": bins, "min": bins}, {"mean": ends, "min": ends}
    )
    higher = {"right": [torch.linspace(0, 20, 61)], "wrong": []}
    figure = gaps.plot_gaps([panel, replace(panel, curves={"mean": higher, "min": higher})])
    assert figure.axes[0].get_ylim()[1] >= 20  # a row has one scale, in which every task fits
    assert len(figure.axes) == 6
    assert drawn(figure)
    threshold: Any = figure.axes[0].lines[-1].get_ydata()
    assert (float(threshold[0]), float(threshold[-1])) == (7.5, 2.5)


def test_risk_draws_speedups_above_and_broken_promises_below() -> None:
    panel = risk.RiskPanel("word", {"rule": 2.0, "bound": 3.0}, (0.0, 0.04), (0.5, 0.6))
    figure = risk.plot_risk([panel, replace(panel, title="choice")], (0.005, 0.05), 0.05, 0.01)
    assert len(figure.axes) == 4
    above, below = figure.axes[0], figure.axes[2]
    assert [text.get_text() for text in above.texts] == ["2.00x", "3.00x"]
    rule, bound = above.patches
    bars: list[Any] = list(below.patches)
    assert rule.get_facecolor() != bound.get_facecolor(), "no rule can reach the bound"
    assert [bar.get_height() for bar in bars] == [0, 4, 50, 60]
    assert below.get_ylim() == (0, 100)
    assert drawn(figure)


def test_a_method_has_one_colour_in_all_pictures() -> None:
    assert colours.colours_of(["full", "Prophet, min", "new"]) == {
        "full": colours.FULL, "Prophet, min": colours.MIN, "new": colours.BLUE,
    }  # fmt: skip
    assert colours.colours_of(["min gap", "mean gap", "mean"])["mean gap"] == colours.MEAN
    compared = ("full", "mean gap", "min gap", "half the budget", "swift")
    assert len(set(colours.colours_of(compared).values())) == len(compared)
    names = [f"method {number}" for number in range(8)]
    assert len(set(colours.colours_of([*names, "swift"]).values())) == 9, "no other method looks like swift"


def test_swift_is_a_star_and_a_small_loss_looks_small() -> None:
    spots = [frontier.Spot("full", 1.0, 0.95, False), frontier.Spot("swift", 9.0, 0.94, True, (0.92, 0.96))]
    figure = frontier.plot_frontier({"word": spots}, "columns", 0.01, ("full", "swift"))
    axes = figure.axes[0]
    assert [line.get_color() for line in axes.lines if line.get_marker() == "*"] == [colours.SWIFT]
    low, high = axes.get_ylim()
    assert high - low > 25, "one point is a small part of the axis"
    assert "swift" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert drawn(figure)


def test_judged_sorts_features_and_draws_a_bar_a_rule() -> None:
    looks = {"word": {"gap": 0.1, "entropy": 0.5}, "choice": {"gap": 0.2, "entropy": 0.0}}
    figure = judge.plot_judge(looks, {"word": {"judge": 1.5, "gap": 1.2}, "choice": {"judge": 2.5, "gap": 2.0}}, 0.01)
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["gap", "entropy"], "the weightiest on top"
    bars: Any = right.patches
    assert [bar.get_height() for bar in bars] == [1.5, 2.5, 1.2, 2.0]
    assert "1%" in right.get_title()
    assert drawn(figure)

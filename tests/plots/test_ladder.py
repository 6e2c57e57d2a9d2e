"""The picture of a tuned file shows each rung where it was measured, and the promised risk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from foretell.engine.certificate import Certificate
from foretell.plots.ladder import ALONE, FAILED, PASSED, plot_ladder

TRIED = [{"speedup": 1.5, "risk": 0.0}, {"speedup": 3.0, "risk": 0.04}]
SAFE = {"speedup": 2.0, "risk": 0.01, "interval": [0.004, 0.02], "certified": True}
FAST = {"speedup": 4.0, "risk": 0.05, "interval": [0.03, 0.08], "certified": False}
RULE = {"speedup": 1.25, "risk": 0.005, "interval": [0.001, 0.009], "stops": True}
REPORT: dict[str, Any] = {"tried": TRIED, "frontier": [SAFE, FAST], "transfer_alone": RULE}


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


class Tuned:
    """What the picture needs of a certificate."""

    model, loss, cost, examples = "random", "answer", "forwards", 300

    def __init__(self, report: dict[str, Any] | None, risk: float = 0.03, task: str | None = "choice") -> None:
        self.report, self.risk, self.task = report, risk, task


def draw(*given: Any, **more: Any) -> Figure:
    return plot_ladder(cast("Certificate", Tuned(*given, **more)))


def points(figure: Figure) -> dict[str, tuple[str, list[float], list[float]]]:
    """Return the colour, the point and the interval of each series with one rung."""
    found = {}
    for bars in figure.axes[0].containers:
        assert isinstance(bars, ErrorbarContainer)
        line, _, (interval,) = bars
        assert line is not None
        low, high = interval.get_segments()[0]
        point = [*map(float, [*np.asarray(line.get_xdata()), *np.asarray(line.get_ydata())])]
        found[str(bars.get_label())] = (to_hex(line.get_color()), point, [float(low[1]), float(high[1])])
    return found


def test_rungs_are_drawn_where_they_were_measured() -> None:
    figure = draw(REPORT)
    (axes,) = figure.axes
    found = points(figure)
    for name, colour, point, interval in (
        ("certified", PASSED, [2, 1], [0.4, 2]),
        ("not certified", FAILED, [4, 5], [3, 8]),
        ("the certified recipe without its stopping rule", ALONE, [1.25, 0.5], [0.1, 0.9]),
    ):
        assert found[name][0] == colour
        assert found[name][1] == pytest.approx(point)
        assert found[name][2] == pytest.approx(interval)
    assert len(found) == 3
    tried = np.asarray(axes.collections[0].get_offsets())
    assert tried == pytest.approx(np.array([[1.5, 0], [3, 4]]))
    (promised,) = (line for line in axes.lines if line.get_linestyle() == ":")
    assert np.asarray(promised.get_ydata()) == pytest.approx([3, 3])
    assert axes.texts[0].get_text() == "risk 3.00%"
    assert axes.get_xlabel() == "speedup, times fewer forwards than full decoding"
    assert axes.get_ylabel() == "mean loss (answer), %"
    assert axes.get_title() == "random, choice, n = 300"
    assert axes.get_xlim()[0] == 1


def test_all_intervals_are_in_the_picture() -> None:
    assert draw(REPORT).axes[0].get_ylim() == pytest.approx((0, 9.6)), "above the interval of the fastest rung"
    assert draw(REPORT, risk=0.2).axes[0].get_ylim() == pytest.approx((0, 60)), "or above the promised risk"


def test_what_is_missing_is_not_drawn() -> None:
    assert [*points(draw({**REPORT, "frontier": [SAFE], "transfer_alone": None}))] == ["certified"]
    assert [*points(draw({**REPORT, "frontier": [FAST], "transfer_alone": {**RULE, "stops": False}}))] == [
        "not certified"
    ]
    bare = draw(None, task=None)
    assert points(bare) == {}
    assert bare.axes[0].get_title() == "random, your examples, n = 300"

"""Speed: bars, slopes by hand, and a panel for each size."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from foretell.plots.scaling import Series, plot_speed


def test_slopes_and_panels() -> None:
    square = Series((1, 2, 4), (3, 12, 48), (5, 10, 20))
    assert square.slopes == pytest.approx((2, 1))
    bars = {"one request": {"ours": 3.0, "theirs": 1.0}}
    figure = plot_speed(bars, {"rows": square, "window": Series((64, 128), (1, 1), (1, 2))})
    above, rows, window = figure.axes
    assert [text.get_text() for text in above.texts] == ["3.0x", "1.0x"]
    assert (rows.get_xlabel(), window.get_xlabel()) == ("rows", "window")
    expected, measured = rows.lines
    assert np.asarray(measured.get_ydata()).tolist() == pytest.approx([1, 4, 16]), "relative to the smallest size"
    assert np.asarray(expected.get_ydata()).tolist() == pytest.approx([1, 2, 4])
    assert rows.get_ylim() == window.get_ylim(), "so that slopes can be compared"
    plt.close(figure)

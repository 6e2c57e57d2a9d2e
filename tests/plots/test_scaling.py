"""Cost against size: slopes by hand, and a panel for each size."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from foretell.plots.scaling import Series, plot_scaling


def test_slopes_and_panels() -> None:
    square = Series((1, 2, 4), (3, 12, 48), (5, 10, 20))
    assert square.slopes == pytest.approx((2, 1))
    figure = plot_scaling({"rows": square, "window": Series((64, 128), (1, 1), (1, 2))})
    assert [axes.get_xlabel() for axes in figure.axes] == ["rows", "window"]
    expected, measured = figure.axes[0].lines
    assert np.asarray(measured.get_ydata()).tolist() == [3, 12, 48]
    assert np.asarray(expected.get_ydata()).tolist() == pytest.approx([12, 24, 48]), "through the last point"
    assert "slope 2.00, expected 1.00" in figure.axes[0].get_title()
    plt.close(figure)

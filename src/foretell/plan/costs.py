"""Cost models of a step: the roofline of a device, and coefficients fitted to measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretell.errors import RequestError, within
from foretell.extras import require_extra
from foretell.plan.roofline import Roofline
from foretell.plan.simulate import BatchStep

# Columns of a pass above which each further one may cost more, because the activations fill another level of cache.
BREAKS = (256, 512, 1024)
ABOVE = tuple(f"column above {one}" for one in BREAKS)
FEATURES = ("step", "pass", "column", *ABOVE, "attention", "logits", "join", "joined row", "left row")
ROUNDS = 10  # of a fit; each takes the errors relative to the times of the round before


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The least time of a step divided by `efficiency`, the share of the roofline that is reached."""

    roofline: Roofline
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        within("efficiency", self.efficiency, 1e-6, 1.0, RequestError)

    def __call__(self, step: BatchStep) -> float:
        return self.roofline.total(step.passes).seconds / self.efficiency


@dataclass(frozen=True, slots=True)
class FittedCost:
    """Seconds per unit of each feature of a step."""

    coefficients: tuple[float, ...]

    def __call__(self, step: BatchStep) -> float:
        return sum(each * value for each, value in zip(self.coefficients, features(step), strict=True))


def features(step: BatchStep) -> tuple[float, ...]:
    """Return the numbers in `FEATURES` of one step."""
    sizes = [one.rows * one.columns for one in step.passes]
    return (
        1.0,
        float(len(step.passes)),
        float(sum(sizes)),
        *(float(sum(max(0, size - most) for size in sizes)) for most in BREAKS),
        float(sum(one.rows * one.columns * one.attended for one in step.passes)),
        float(sum(one.read for one in step.passes)),
        float(step.joined > 0),
        float(step.joined),
        float(step.left),
    )


def fit(steps: Sequence[BatchStep], seconds: Sequence[float]) -> FittedCost:
    """Fit coefficients that are not negative to measured steps, by least squares of relative errors.

    Errors are relative to the fitted times. Relative to the measured ones, a slow step would count less than a fast
    one, and the fit would be too low where the measurements are noisy.
    """
    require_extra("lab")
    from scipy.optimize import nnls  # noqa: PLC0415  optional

    if len(steps) < len(FEATURES):
        raise RequestError(f"a fit needs at least {len(FEATURES)} steps, got {len(steps)}")
    measured = np.array(seconds)
    table = np.array([features(one) for one in steps])
    scale = np.maximum(table.max(axis=0), 1e-300)
    table /= scale
    expected = measured
    for _ in range(ROUNDS):
        found, _ = nnls(table / expected[:, None], measured / expected)
        expected = np.maximum(table @ found, 1e-300)
    return FittedCost(tuple(float(each) for each in found / scale))

"""How often certificates hold: calibrate on one half of the examples, look at the other, over many random splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.errors import RequestError
from foretell.lab.outcomes import Array, Outcomes
from foretell.lab.risk import checked, exact, naive, walked


@dataclass(frozen=True, slots=True)
class Kept:
    """What one way to choose a rule makes of the splits. Risk and speedup are those of the held-out halves, on average.

    What delta bounds is the chance of a rule whose risk is really above eps. The nearest to that is `above_all`: the
    risk over all examples, of which a calibration half is a random draw. `above` may be larger: a held-out half is a
    sample itself, and it has all the errors that the calibration half of the same pool was spared.
    """

    speedup: float
    risk: float
    above: float  # share of the splits whose held-out risk is above eps
    above_all: float  # share of the splits whose rule has a risk above eps over all examples
    stops: float  # share of the splits that found a rule at all


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """A family's losses and steps on both sides of every split; row 0 is to never stop, which loses nothing."""

    calibration: Array  # [splits, rules] errors on the calibration half
    held_out: Array  # [splits, rules + 1] mean loss on the other half
    overall: Array  # [rules + 1] mean loss over all examples
    speedup: Array  # [splits, rules + 1] on the other half
    half: int  # examples to calibrate on

    @classmethod
    def of(cls, found: Outcomes, loss: str, halves: Array) -> Splits:
        """`halves` [splits, n] is true on the examples to calibrate on: equally many in each split."""
        counts = halves.sum(axis=1)
        if (counts != counts[0]).any() or not 0 < counts[0] < halves.shape[1]:
            raise RequestError("every split needs equally many examples to calibrate on, and some that are left over")
        losses, rest = found.losses(loss), (~halves).astype(float)
        never = np.zeros((1, losses.shape[1]))
        every, steps = np.vstack([never, losses]), np.vstack([found.full[None], found.steps])
        return cls(
            calibration=halves.astype(float) @ losses.T,
            held_out=(rest @ every.T) / rest.sum(axis=1, keepdims=True),
            overall=every.mean(axis=1),
            speedup=(rest @ found.full)[:, None] / (rest @ steps.T),
            half=int(counts[0]),
        )

    def certified(self, risk: float, confidence: float) -> Kept:
        """By fixed-sequence testing."""
        return self.kept(self.walk(risk, confidence), risk)

    def walk(self, risk: float, confidence: float) -> Array:
        """The member that each split's calibration half certifies, from 1; 0 is to never stop. [splits]"""
        checked(risk, confidence)
        return walked(exact(self.calibration, self.half, risk), confidence)

    def hoped(self, risk: float) -> Kept:
        """By trusting the mean loss on the calibration half."""
        return self.kept(naive(self.calibration / self.half, risk), risk)

    def fixed(self, index: int, risk: float) -> Kept:
        """The same rule in every split, the family's `index`-th."""
        return self.kept(np.full(len(self.calibration), index + 1), risk)

    def kept(self, chosen: Array, risk: float) -> Kept:
        """What the members `chosen` [splits] make of the other halves; they may have been chosen elsewhere."""

        def mean(table: Array) -> float:
            return float(np.take_along_axis(table, chosen[:, None], axis=1).mean())

        return Kept(
            speedup=mean(self.speedup),
            risk=mean(self.held_out),
            above=mean(self.held_out > risk),
            above_all=float((self.overall[chosen] > risk).mean()),
            stops=float((chosen > 0).mean()),
        )


def halves(count: int, splits: int, seed: int) -> Array:
    """True on a random half of `count` examples, for each split. [splits, n]"""
    rng: Any = np.random.default_rng(seed)
    places: Array = rng.permuted(np.tile(np.arange(count), (splits, 1)), axis=1)
    return places < count // 2

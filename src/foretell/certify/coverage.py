"""How often certificates hold: rules chosen on many calibration sets from one pool, whose risks are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.certify.outcomes import Array, Outcomes
from foretell.certify.risk import binomial_p_values, check_shares, confidence_per_family, count_certified, naive
from foretell.errors import RequestError


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """What one way to choose a rule makes of many calibration sets.

    Delta bounds `violations`: a draw is what the promise is about, independent examples of a population, and the pool
    is a population whose risk under every rule is known. `above` may be larger though every certificate is right: a
    held-out half is a sample itself, and it has the errors that the calibration half of the same pool was spared.
    """

    speedup: float  # on the held-out halves, mean over the splits
    risk: float  # the same
    above: float  # share of the splits whose held-out risk is above eps
    violations: float  # share of the draws whose rule has a risk above eps over the pool
    stops: float  # share of the splits that found a rule at all


@dataclass(frozen=True, slots=True, eq=False)
class Sets:
    """Calibration sets of one size from a pool of n examples. Where results are [sets], halves come before draws."""

    halves: Array  # [splits, n] true on a random half; the other one is held out
    draws: Array  # [draws, n] how often each example was drawn, with replacement

    def __post_init__(self) -> None:
        sizes = {*self.halves.sum(axis=1).tolist(), *self.draws.sum(axis=1).tolist()}
        if len(sizes) != 1 or not 0 < self.size < self.halves.shape[1]:
            raise RequestError(
                "calibration sets need equally many examples each, some of which are left over in each split; "
                f"got sets of {', '.join(map(str, sorted(sizes)))} from {self.halves.shape[1]}"
            )

    @classmethod
    def of(cls, count: int, splits: int, draws: int, seed: int) -> Sets:
        """Random halves of `count` examples, and draws as large as a half from all of them."""
        rng: Any = np.random.default_rng(seed)
        places: Array = rng.permuted(np.tile(np.arange(count), (splits, 1)), axis=1)
        return cls(places < count // 2, rng.multinomial(count // 2, np.full(count, 1 / count), draws))

    @property
    def size(self) -> int:
        """Examples to calibrate on."""
        return int(self.halves[0].sum())

    @property
    def counts(self) -> Array:
        """How often each example is in each set. [splits + draws, n]"""
        return np.vstack([self.halves, self.draws]).astype(float)


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """What the rules of one or more families do on every calibration set, beside it, and over the pool.

    The first column is to never stop, which loses nothing; the families' rules follow one behind the other.
    """

    errors: Array  # [sets, rules + 1] on the calibration set
    gained: Array  # [sets, rules + 1] speedup on it
    held_out: Array  # [splits, rules + 1] mean loss on the other half
    speedup: Array  # [splits, rules + 1] on the other half
    overall: Array  # [rules + 1] mean loss over the pool
    families: tuple[int, ...]  # how many rules each has
    size: int  # examples to calibrate on

    @classmethod
    def of(cls, sets: Sets, loss: str, *found: Outcomes) -> Coverage:
        """Of one family, or of several that share delta."""
        if not found or not all(np.array_equal(one.full, found[0].full) for one in found):
            raise RequestError("families are compared on the same examples, decoded in full in the same steps")
        full, counts, rest = found[0].full, sets.counts, (~sets.halves).astype(float)
        losses = np.vstack([np.zeros(len(full)), *(one.losses(loss) for one in found)])
        steps = np.vstack([full, *(one.steps for one in found)])
        return cls(
            errors=(counts @ losses.T).astype(int),
            gained=(counts @ full)[:, None] / (counts @ steps.T),
            held_out=(rest @ losses.T) / rest.sum(axis=1, keepdims=True),
            speedup=(rest @ full)[:, None] / (rest @ steps.T),
            overall=losses.mean(axis=1),
            families=tuple(len(one.steps) for one in found),
            size=sets.size,
        )

    def evaluate_certified(self, risk: float, confidence: float) -> CoverageResult:
        """By fixed-sequence testing."""
        return self.evaluate_choice(self.choose_certified(risk, confidence), risk)

    def choose_certified(self, risk: float, confidence: float) -> Array:
        """The rule that each calibration set certifies, as a column; 0 is to never stop. [sets]

        Of several families each is walked at its share of delta, so that all of what they certify holds at once, and
        the set may have a second use: to say which of it is fastest.
        """
        check_shares(risk, confidence)
        level = confidence_per_family(confidence, len(self.families))
        p_values = binomial_p_values(np.arange(self.size + 1), self.size, risk)  # of every number of errors
        return self._choose_fastest([count_certified(p_values[errors], level) for errors in self._split_errors()])

    def evaluate_naive(self, risk: float) -> CoverageResult:
        """By trusting the mean loss on the calibration set."""
        return self.evaluate_choice(
            self._choose_fastest([naive(errors / self.size, risk) for errors in self._split_errors()]), risk
        )

    def evaluate_fixed(self, index: int, risk: float) -> CoverageResult:
        """The same rule whatever the calibration set, the `index`-th."""
        return self.evaluate_choice(np.full(len(self.errors), index + 1), risk)

    def evaluate_choice(self, chosen: Array, risk: float) -> CoverageResult:
        """What the columns `chosen` [sets] come to; they may have been chosen elsewhere, on the same sets."""
        splits = len(self.held_out)
        beside, drawn = chosen[:splits, None], chosen[splits:]
        held_out = np.take_along_axis(self.held_out, beside, axis=1)
        return CoverageResult(
            speedup=float(np.take_along_axis(self.speedup, beside, axis=1).mean()),
            risk=float(held_out.mean()),
            above=float((held_out > risk).mean()),
            violations=float((self.overall[drawn] > risk).mean()),
            stops=float((beside > 0).mean()),
        )

    def _split_errors(self) -> Iterator[Array]:
        """A family's errors. [sets, its rules]"""
        yield from np.split(self.errors[:, 1:], np.cumsum(self.families)[:-1], axis=1)

    def _choose_fastest(self, passed: Sequence[Array]) -> Array:
        """Of each family's last rule that passed [sets], the one that gains most on the calibration set. [sets]"""
        starts = np.cumsum((0, *self.families[:-1]))
        columns = np.stack(
            [np.where(last > 0, start + last, 0) for start, last in zip(starts, passed, strict=True)], axis=1
        )
        best = np.take_along_axis(self.gained, columns, axis=1).argmax(axis=1, keepdims=True)
        chosen: Array = np.take_along_axis(columns, best, axis=1)[:, 0]
        return chosen

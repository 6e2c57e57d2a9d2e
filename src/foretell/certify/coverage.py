"""Measure how often certificates hold, by choosing rules on many calibration sets from a pool with known risks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.certify.outcomes import Array, Outcomes
from foretell.certify.risk import binomial_p_values, check_shares, confidence_at, count_certified, naive
from foretell.errors import RequestError


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """The results of one way to choose a rule, over many calibration sets.

    Delta bounds `violations`: the guarantee is about independent draws from a population, and the pool is a population
    whose risk under every rule is known. `above` may exceed delta although every certificate is right: a held-out half
    is itself a sample, and it contains the errors that are missing from the calibration half of the same pool.
    """

    speedup: float  # mean over the held-out halves
    risk: float  # mean over the held-out halves
    above: float  # share of the splits with a held-out risk above eps
    violations: float  # share of the draws that chose a rule whose risk on the pool is above eps
    stops: float  # share of the splits that found a rule


@dataclass(frozen=True, slots=True, eq=False)
class Sets:
    """Calibration sets of equal size from a pool of n examples. Results of shape [sets] list halves before draws."""

    halves: Array  # [splits, n] true for a random half; the other half is held out
    draws: Array  # [draws, n] how often each example was drawn with replacement

    def __post_init__(self) -> None:
        sizes = {*self.halves.sum(axis=1).tolist(), *self.draws.sum(axis=1).tolist()}
        if len(sizes) != 1 or not 0 < self.size < self.halves.shape[1]:
            raise RequestError(
                "calibration sets must have the same size, and every split must leave some examples held out; "
                f"got sets of {', '.join(map(str, sorted(sizes)))} from {self.halves.shape[1]}"
            )

    @classmethod
    def of(cls, count: int, splits: int, draws: int, seed: int) -> Sets:
        """Draw random halves of `count` examples, and samples of the same size with replacement."""
        rng: Any = np.random.default_rng(seed)
        places: Array = rng.permuted(np.tile(np.arange(count), (splits, 1)), axis=1)
        return cls(places < count // 2, rng.multinomial(count // 2, np.full(count, 1 / count), draws))

    @property
    def size(self) -> int:
        """The number of examples per calibration set."""
        return int(self.halves[0].sum())

    @property
    def counts(self) -> Array:
        """How often each set contains each example. [splits + draws, n]"""
        return np.vstack([self.halves, self.draws]).astype(float)


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Losses and speedups of the rules of one or more families on calibration sets, held-out halves and the pool.

    Column 0 stands for never stopping, which loses nothing; the rules of the families follow in order.
    """

    errors: Array  # [sets, rules + 1] number of errors on the calibration set
    gained: Array  # [sets, rules + 1] speedup on the calibration set
    held_out: Array  # [splits, rules + 1] mean loss on the other half
    speedup: Array  # [splits, rules + 1] on the other half
    overall: Array  # [rules + 1] mean loss over the pool
    families: tuple[int, ...]  # number of rules per family
    size: int  # examples per calibration set

    @classmethod
    def of(cls, sets: Sets, loss: str, *found: Outcomes) -> Coverage:
        """Tabulate the outcomes of one family, or of several that share delta."""
        if not found or not all(np.array_equal(one.full, found[0].full) for one in found):
            raise RequestError("families must be compared on the same examples, decoded in the same number of steps")
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

    def evaluate_certified(
        self, risk: float, confidence: float, shares: Sequence[float] | None = None
    ) -> CoverageResult:
        """Evaluate the rules that fixed-sequence testing chooses."""
        return self.evaluate_choice(self.choose_certified(risk, confidence, shares), risk)

    def choose_certified(self, risk: float, confidence: float, shares: Sequence[float] | None = None) -> Array:
        """Return the column of the rule that each calibration set certifies; 0 means never stop. [sets]

        Each of several families is tested at its share of delta (default: equal shares), so all their certificates
        hold at once, and the same set may also be used to choose the fastest of them.
        """
        check_shares(risk, confidence)
        shares = shares or [1 / len(self.families)] * len(self.families)
        p_values = binomial_p_values(np.arange(self.size + 1), self.size, risk)  # one per number of errors
        passed = [
            count_certified(p_values[errors], confidence_at(confidence, share))
            for errors, share in zip(self._split_errors(), shares, strict=True)
        ]
        return self._choose_fastest(passed)

    def evaluate_naive(self, risk: float) -> CoverageResult:
        """Evaluate the rules chosen by their mean loss on the calibration set, without a guarantee."""
        return self.evaluate_choice(
            self._choose_fastest([naive(errors / self.size, risk) for errors in self._split_errors()]), risk
        )

    def evaluate_fixed(self, index: int, risk: float) -> CoverageResult:
        """Evaluate the `index`-th rule on every set."""
        return self.evaluate_choice(np.full(len(self.errors), index + 1), risk)

    def evaluate_choice(self, chosen: Array, risk: float) -> CoverageResult:
        """Evaluate the columns `chosen` [sets], which may come from another `Coverage` of the same sets."""
        splits = len(self.held_out)
        on_halves, on_draws = chosen[:splits, None], chosen[splits:]
        held_out = np.take_along_axis(self.held_out, on_halves, axis=1)
        return CoverageResult(
            speedup=float(np.take_along_axis(self.speedup, on_halves, axis=1).mean()),
            risk=float(held_out.mean()),
            above=float((held_out > risk).mean()),
            violations=float((self.overall[on_draws] > risk).mean()),
            stops=float((on_halves > 0).mean()),
        )

    def _split_errors(self) -> Iterator[Array]:
        """Yield the errors of each family. [sets, its rules]"""
        yield from np.split(self.errors[:, 1:], np.cumsum(self.families)[:-1], axis=1)

    def _choose_fastest(self, passed: Sequence[Array]) -> Array:
        """Choose the fastest on the calibration set of the last rules that passed, one [sets] per family. [sets]"""
        starts = np.cumsum((0, *self.families[:-1]))
        columns = np.stack(
            [np.where(last > 0, start + last, 0) for start, last in zip(starts, passed, strict=True)], axis=1
        )
        best = np.take_along_axis(self.gained, columns, axis=1).argmax(axis=1, keepdims=True)
        chosen: Array = np.take_along_axis(columns, best, axis=1)[:, 0]
        return chosen

"""Ladders: recipes from safe to fast, with thresholds placed on the model's own scale.

A threshold that is cautious for one model is never reached by another, so no threshold is fixed here. `ModelScale`
looks at full decodings: how certain is the model of drafts that it changes later? A bar at tolerance t lets the share t
of those wrong drafts pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from foretell.engine.trace import Trace
from foretell.errors import RequestError
from foretell.loop.protocols import Transfer
from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.entropy_threshold import EntropyThreshold
from foretell.policies.transfer.factor import Factor
from foretell.policies.transfer.frechet import Frechet
from foretell.policies.transfer.threshold import Threshold

MEASURES = ("confidence", "gap", "entropy")
# Shares of wrong drafts, two levels per factor of two, from 1 in 16,000 to one half; the safest first.
TOLERANCES = tuple(2 ** (-step / 2) for step in range(28, 1, -1))


@dataclass(frozen=True, slots=True)
class Ladder:
    """Recipes as text, each complete, from safe to fast. Full decoding comes before the first one."""

    name: str
    rungs: tuple[str, ...]
    settings: tuple[float, ...] = ()  # the number that differs between rungs, if there is one
    knob: str = "rung"  # the name of that number

    def __post_init__(self) -> None:
        if not self.rungs:
            raise RequestError(f"the ladder {self.name!r} has no rungs")

    @property
    def key(self) -> str:
        """Its name and a short hash of its rungs, which identify it."""
        return f"{self.name} {blake2b(json.dumps(self.rungs).encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class ModelScale:
    """Bars by tolerance and measure, from the drafts of full decodings that were wrong."""

    bars: Mapping[str, tuple[float, ...]]  # one per tolerance
    right: Mapping[str, tuple[float, ...]]  # the same quantiles of the drafts that were right, for reports
    drafts: int
    wrong: int

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> ModelScale:
        """Return the scale of the model in these full decodings. A draft is wrong if its token changes later."""
        seen: dict[str, list[torch.Tensor]] = {name: [] for name in ("right", *MEASURES)}
        for trace in traces:
            open_masks = trace.states().eligible
            seen["right"].append((trace.tokens == trace.tokens[-1])[open_masks])
            for name in MEASURES:
                seen[name].append(getattr(trace, name)[open_masks].float())
        right = torch.cat(seen["right"]).numpy()
        values = {name: torch.cat(seen[name]).numpy().astype(float) for name in MEASURES}
        wrong = {name: one[~right] if (~right).any() else _most_certain(name, one) for name, one in values.items()}
        return cls(
            bars={name: _quantiles(name, one) for name, one in wrong.items()},
            right={name: _quantiles(name, one[right]) for name, one in values.items()},
            drafts=len(right),
            wrong=int((~right).sum()),
        )

    def bar(self, measure: str, level: float, odds: float = 1.0) -> float:
        """Return the bar of a measure at a level, an index of TOLERANCES or a number between two of them.

        Few examples show few wrong drafts, so bars that are safer than any of them are extrapolated: `odds` multiplies
        the odds of a wrong draft, and levels below 0 halve them with every two levels.
        """
        bars, low = self.bars[measure], math.floor(max(0.0, level))
        bar = _blend(measure, bars[low], bars[min(low + 1, len(bars) - 1)], max(0.0, level) - low)
        odds *= 2 ** (min(0.0, level) / 2)
        if measure == "gap":
            return bar - math.log(odds)
        return bar * odds if measure == "entropy" else 1 - (1 - bar) * odds


def _blend(measure: str, low: float, high: float, share: float) -> float:
    """Return the value between two bars: logarithmic for entropies and probabilities of an error, linear for gaps."""
    if measure == "gap":
        return low + share * (high - low)
    if measure == "entropy":
        return float(low ** (1 - share) * high**share)
    return 1 - _blend("entropy", 1 - low, 1 - high, share)


def _most_certain(measure: str, values: Any) -> Any:
    """Return the most certain value as the only one: if no draft was ever wrong, any bar is safe."""
    return np.array([values.min() if measure == "entropy" else values.max()])


def _quantiles(measure: str, values: Any) -> tuple[float, ...]:
    """Return the values that the share t is at least as certain as, for every tolerance t."""
    shares = np.array(TOLERANCES)
    found = np.quantile(values, shares if measure == "entropy" else 1 - shares)
    return tuple(float(one) for one in found)


@dataclass(frozen=True, slots=True)
class TransferKind:
    """A transfer with one number, which is placed on the scale of one measure."""

    name: str
    measure: str
    make: Callable[[float], Transfer]


def round_share(value: float) -> float:
    """Round a probability to a grid of eight steps per unit of log-odds, so that ladders of several runs share rungs.

    The result has three significant digits of its distance to the nearer of 0 and 1.
    """
    inside = min(max(value, 1e-7), 1 - 1e-7)
    odds = round(8 * math.log(inside / (1 - inside))) / 8
    share = 1 / (1 + math.exp(-abs(odds)))
    above = float(f"{1 - share:.3g}")
    return round(1 - above if odds > 0 else above, 10)


def round_size(value: float) -> float:
    """Round a positive number to a grid of eight steps per factor of e, with three significant digits."""
    return float(f"{math.exp(round(8 * math.log(max(value, 1e-7))) / 8):.3g}")


TRANSFERS: dict[str, TransferKind] = {
    one.name: one
    for one in (
        TransferKind("threshold", "confidence", lambda bar: Threshold(round_share(bar))),
        # One mask is filled if its confidence is above the bar: (1 + 1)(1 - c) < factor, and c - (1 - c) > margin.
        TransferKind("factor", "confidence", lambda bar: Factor(round_size(2 * (1 - bar)))),
        TransferKind("frechet", "confidence", lambda bar: Frechet(round(max(0.0, 2 * round_share(bar) - 1), 10))),
        TransferKind("entropy-bound", "entropy", lambda bar: EntropyBound(round_size(bar))),
        TransferKind("med", "entropy", lambda bar: EntropyThreshold(round_size(bar))),
    )
}

"""Prophet: commit once the mean confidence gap of the answer region reaches a falling threshold."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foretell.errors import one_of, within
from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView
from foretell.policies.stop.scales import Gap, Scale
from foretell.policies.stop.schedules import Schedule, Staged


@dataclass(frozen=True, slots=True)
class Prophet:
    """gap(answer region) >= tau(p), Eq. 5 with its defaults. An empty region never settles.

    `reduce`: the mean (the paper), the min, or the quantile `q` of the region's gaps; a mean can hide one unsure token.
    `over`: all positions of the region (the released code), or only its masks; once no mask is left, nothing can
    change the answer any more and it is settled.
    `clock`: p counts steps (the paper and the default) or filled tokens. A recipe whose transfer fills many masks at
    once has to name a clock.
    `one_based`: the released code's p, (step + 1) / T, instead of the paper's step / T.
    `scale`: a measure to use instead of the gap, with other thresholds: `log_odds`, or `ranks` among known gaps.
    """

    tau: Schedule = Staged()
    reduce: Literal["mean", "min", "quantile"] = "mean"
    q: float = 0.1
    over: Literal["all", "masked"] = "all"
    clock: Literal["steps", "tokens"] | None = None
    one_based: bool = False
    scale: Scale = Gap()

    def __post_init__(self) -> None:
        one_of("prophet's reduce", self.reduce, ("mean", "min", "quantile"))
        one_of("prophet's over", self.over, ("all", "masked"))
        if self.clock is not None:
            one_of("prophet's clock", self.clock, ("steps", "tokens"))
        within("prophet's q", self.q, 0.0, 1.0)

    def reads(self, state: StateView) -> Tensor:
        return state.answer & state.masked if self.over == "masked" else state.answer

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        value, progress = self.score(beliefs, state), self._progress(state)
        bar = self.tau(progress)
        return Verdict(_reaches(value, bar), value, bar, self.measure, progress)

    @property
    def scored_by(self) -> Hashable:
        return Prophet, self.reduce, self.q, self.over, self.scale

    def score(self, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return the region's gap. [B]"""
        read = self.reads(state)
        value = self._reduce(self.scale(beliefs), read)
        value = torch.where(read.any(dim=1), value, torch.inf)
        return torch.where(state.answer.any(dim=1), value, -torch.inf)

    def settles(self, score: Tensor, state: StateView) -> Tensor:
        return _reaches(score, self.tau(self._progress(state)))

    @property
    def measure(self) -> str:
        """The name of the compared value, for screens and reports: "mean gap", "min gap", "0.1-quantile log-odds"."""
        return f"{f'{self.q:g}-quantile' if self.reduce == 'quantile' else self.reduce} {self.scale.measure}"

    def _progress(self, state: StateView) -> Tensor:
        if self.clock == "tokens":
            return state.filled
        return (state.step + 1) / state.budget if self.one_based else state.progress

    def _reduce(self, gap: Tensor, read: Tensor) -> Tensor:
        size = read.sum(dim=1)
        if self.reduce == "mean":
            return (gap * read).sum(dim=1) / size.clamp(min=1)
        rank = (self.q * (size - 1)).long().clamp(min=0) if self.reduce == "quantile" else torch.zeros_like(size)
        return gap.masked_fill(~read, torch.inf).sort(dim=1).values.gather(1, rank[:, None]).squeeze(1)


def _reaches(value: Tensor, bar: Tensor) -> Tensor:
    """Return whether values reach the bar; an infinite bar is never reached."""
    return (value >= bar) & (bar < torch.inf)

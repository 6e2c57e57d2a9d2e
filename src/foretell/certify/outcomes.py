"""What every rule of a family makes of every example, replayed on traces: the steps it takes, and what it loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.certify.replay import Case
from foretell.engine.certificate import LOSSES
from foretell.engine.trace import STATISTICS, Trace
from foretell.errors import RequestError, one_of
from foretell.evaluation.records import Record
from foretell.loop.protocols import Beliefs, Region, Stop
from foretell.loop.state import DecodeState
from foretell.policies.stop.judge import Judge

Array = np.ndarray[Any, Any]
TOGETHER = 32  # traces asked at once: enough that the calls cost little, few enough to stay in a core's cache


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Rules by examples."""

    steps: Array  # [rules, n] taken until the text is there
    full: Array  # [n] taken by the whole decoding
    changed: Array  # [rules, n] whether the answer is another one than the whole decoding's
    lost: Array  # [rules, n] whether it is wrong where the whole decoding's is right

    def losses(self, loss: str) -> Array:
        """Zeros and ones. [rules, n]"""
        one_of("loss", loss, LOSSES, RequestError)
        return (self.changed if loss == "consistency" else self.lost).astype(float)

    def speedups(self) -> Array:
        """Mean steps of the whole decoding over each rule's. [rules]"""
        ratio: Array = self.full.mean() / self.steps.mean(axis=1)
        return ratio


def outcomes(
    cases: Sequence[Case], rules: Sequence[Stop], region: Region | None = None, against: Sequence[Record] | None = None
) -> Outcomes:
    """Replay `rules` on every case, on the recipe's region or another one.

    Answers and steps are compared with those of the whole decodings, or with those of another recipe, `against`.
    """
    compared = [case.record for case in cases] if against is None else against
    if [one.id for one in compared] != [case.example.id for case in cases]:
        raise RequestError("what the answers are compared with must be of the same examples in the same order")
    shape = (len(rules), len(cases))
    steps, changed, lost = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    fired = exits([case.trace for case in cases], rules, region)
    for column, (case, found, whole) in enumerate(zip(cases, fired, compared, strict=True)):
        answers = {step: case.emitted(step) for step in {*found} if step is not None}
        for row, step in enumerate(found):
            answer, right = (case.record.answer, case.record.correct) if step is None else answers[step]
            steps[row, column] = len(case.trace) if step is None else step + 1
            changed[row, column] = answer != whole.answer
            lost[row, column] = whole.correct and not right
    return Outcomes(steps, np.array([one.steps for one in compared]), changed, lost)


def exits(traces: Sequence[Trace], rules: Sequence[Stop], region: Region | None = None) -> list[list[int | None]]:
    """`trace.replay(rule, region)` of every trace and rule.

    A rule looks at the rows of a batch one by one, so many traces are laid behind each other and asked together.
    """
    found: list[list[int | None]] = []
    for some, beliefs, states in together(traces, region):
        fired = torch.stack(settled(rules, beliefs, states))  # [rules, steps of all traces]
        for mine in torch.split(fired, [len(trace) for trace in some], dim=1):
            ever, first = mine.any(dim=1).tolist(), mine.int().argmax(dim=1).tolist()
            found.append([step if fires else None for fires, step in zip(ever, first, strict=True)])
    return found


def settled(rules: Sequence[Stop], beliefs: Beliefs, states: DecodeState) -> list[Tensor]:
    """Where each rule would stop. [rows] each"""
    scores: dict[str, Tensor] = {}  # by head: one look serves all its bars, and a family has dozens of them
    found = []
    for rule in rules:
        if not isinstance(rule, Judge):
            found.append(rule(beliefs, states).settled)
            continue
        if rule.sha256 not in scores:
            scores[rule.sha256] = rule.score(beliefs, states)
        found.append(rule.settles(scores[rule.sha256]))
    return found


def together(
    traces: Sequence[Trace], region: Region | None = None
) -> Iterator[tuple[Sequence[Trace], Joined, DecodeState]]:
    """Some traces at a time, with their beliefs and states as rows of one batch."""
    for start in range(0, len(traces), TOGETHER):
        some = traces[start : start + TOGETHER]
        if len({(trace.request.recipe, trace.request.layout.length) for trace in some}) > 1:
            raise RequestError("traces that are replayed together must share their recipe and window length")
        yield some, Joined.of(some), _joined([trace.states(region) for trace in some])


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Implements `protocols.Beliefs`: the steps of several traces as rows of one batch. All [rows, N]."""

    tokens: Tensor
    confidence: Tensor
    gap: Tensor
    margin: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Joined:
        names = ("tokens", *STATISTICS)
        return cls(**{name: torch.cat([getattr(trace, name) for trace in traces]) for name in names})


def _joined(states: list[DecodeState]) -> DecodeState:
    """In pairs of pairs, because every joining copies both."""
    while len(states) > 1:
        pairs = [one.join(other) for one, other in zip(states[::2], states[1::2], strict=False)]
        states = pairs if len(states) % 2 == 0 else [*pairs, states[-1]]
    return states[0]

"""Replay every rule of a family on the traces of every example: the steps it takes, and what it loses."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
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
from foretell.policies.stop.combined import All
from foretell.policies.stop.scored import Scored

Array = np.ndarray[Any, Any]
TRACES_PER_BATCH = 32  # fewer need more calls; more do not fit in a core's cache


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The results of rules (rows) on examples (columns)."""

    steps: Array  # [rules, n] steps until the rule commits
    full: Array  # [n] steps of the full decoding
    changed: Array  # [rules, n] whether the answer differs from the full decoding's
    lost: Array  # [rules, n] whether the answer is wrong where the full decoding's is right

    def losses(self, loss: str) -> Array:
        """Return the losses, zeros and ones. [rules, n]"""
        one_of("loss", loss, LOSSES, RequestError)
        return (self.changed if loss == "consistency" else self.lost).astype(float)

    def speedups(self) -> Array:
        """Return the mean steps of full decoding divided by each rule's mean steps. [rules]"""
        ratio: Array = self.full.mean() / self.steps.mean(axis=1)
        return ratio


def replay_rules(
    cases: Sequence[Case], rules: Sequence[Stop], region: Region | None = None, against: Sequence[Record] | None = None
) -> Outcomes:
    """Replay `rules` on every case, reading the recipe's region or another one.

    Answers and steps are compared with those of the full decodings, or with those of another recipe, `against`.
    """
    compared = [case.record for case in cases] if against is None else against
    if [one.id for one in compared] != [case.example.id for case in cases]:
        raise RequestError("answers must be compared with records of the same examples in the same order")
    shape = (len(rules), len(cases))
    steps, changed, lost = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    fired = find_exits([case.trace for case in cases], rules, region)
    for column, (case, found, whole) in enumerate(zip(cases, fired, compared, strict=True)):
        exits = np.array([-1 if step is None else step for step in found])  # -1: never
        steps[:, column] = np.where(exits < 0, len(case.trace), exits + 1)
        for step in np.unique(exits).tolist():
            answer, right = (case.record.answer, case.record.correct) if step < 0 else case.answer_at(step)
            changed[exits == step, column] = answer != whole.answer
            lost[exits == step, column] = whole.correct and not right
    return Outcomes(steps, np.array([one.steps for one in compared]), changed, lost)


def find_exits(traces: Sequence[Trace], rules: Sequence[Stop], region: Region | None = None) -> list[list[int | None]]:
    """Return `trace.replay(rule, region)` for every trace and rule.

    A rule treats the rows of a batch independently, so the steps of many traces are evaluated as one batch.
    """
    found: list[list[int | None]] = []
    for some, beliefs, states in batch_traces(traces, region):
        fired = torch.stack(evaluate_rules(rules, beliefs, states))  # [rules, steps of all traces]
        for mine in torch.split(fired, [len(trace) for trace in some], dim=1):
            ever, first = mine.any(dim=1).tolist(), mine.int().argmax(dim=1).tolist()
            found.append([step if fires else None for fires, step in zip(ever, first, strict=True)])
    return found


def evaluate_rules(rules: Sequence[Stop], beliefs: Beliefs, states: DecodeState) -> list[Tensor]:
    """Return for each rule the rows at which it would stop. [rows] each"""
    scores: dict[Hashable, Tensor] = {}  # so that all rules of a family share one computation

    def evaluate(rule: Stop) -> Tensor:
        if isinstance(rule, All):
            return reduce(torch.logical_and, map(evaluate, rule.rules))
        if not isinstance(rule, Scored):
            return rule(beliefs, states).settled
        if rule.scored_by not in scores:
            scores[rule.scored_by] = rule.score(beliefs, states)
        return rule.settles(scores[rule.scored_by], states)

    return [evaluate(rule) for rule in rules]


def batch_traces(
    traces: Sequence[Trace], region: Region | None = None
) -> Iterator[tuple[Sequence[Trace], JoinedBeliefs, DecodeState]]:
    """Yield groups of traces, with their beliefs and states as the rows of one batch."""
    for start in range(0, len(traces), TRACES_PER_BATCH):
        some = traces[start : start + TRACES_PER_BATCH]
        if len({(trace.request.recipe, trace.request.layout.length) for trace in some}) > 1:
            raise RequestError("traces in one replay must have the same recipe and window length")
        yield some, JoinedBeliefs.of(some), _join_states([trace.states(region) for trace in some])


@dataclass(frozen=True, slots=True, eq=False)
class JoinedBeliefs:
    """Implements `protocols.Beliefs`: the steps of several traces as rows of one batch. All [rows, N]."""

    tokens: Tensor
    confidence: Tensor
    gap: Tensor
    margin: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> JoinedBeliefs:
        names = ("tokens", *STATISTICS)
        return cls(**{name: torch.cat([getattr(trace, name) for trace in traces]) for name in names})


def _join_states(states: list[DecodeState]) -> DecodeState:
    """Join states pairwise, because every join copies both sides."""
    while len(states) > 1:
        pairs = [one.join(other) for one, other in zip(states[::2], states[1::2], strict=False)]
        states = pairs if len(states) % 2 == 0 else [*pairs, states[-1]]
    return states[0]

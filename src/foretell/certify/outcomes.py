"""Replay every rule of a family on the traces of every example: the steps it takes, and what it loses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.certify.losses import LOSSES, Decoded, Loss, describe_example
from foretell.certify.replay import Case
from foretell.engine.trace import STATISTICS, Trace
from foretell.errors import RequestError, one_of
from foretell.evaluation.records import Record
from foretell.loop.protocols import Beliefs, Region, Stop
from foretell.loop.state import DecodeState
from foretell.policies.stop.combined import All
from foretell.policies.stop.scored import Scored
from foretell.recipes.recipe import Recipe

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
        """Return the losses "answer" or "success", zeros and ones. [rules, n]"""
        one_of("loss", loss, ("answer", "success"), RequestError)
        return (self.changed if loss == "answer" else self.lost).astype(float)

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
    steps, (changed, lost) = replay_losses(cases, rules, compared, (LOSSES["answer"], LOSSES["success"]), region)
    return Outcomes(steps, np.array([one.steps for one in compared]), changed.astype(bool), lost.astype(bool))


def replay_losses(
    cases: Sequence[Case],
    rules: Sequence[Stop],
    against: Sequence[Record],
    losses: Sequence[Loss],
    region: Region | None = None,
) -> tuple[Array, Array]:
    """Return the steps until each rule commits [rules, n], and every loss against other records [losses, rules, n]."""
    if [one.id for one in against] != [case.example.id for case in cases]:
        raise RequestError("answers must be compared with records of the same examples in the same order")
    shape = (len(rules), len(cases))
    steps, found = np.zeros(shape, dtype=np.int64), np.zeros((len(losses), *shape))
    fired = find_exits([case.trace for case in cases], rules, region)
    for column, (case, fired_at, full) in enumerate(zip(cases, fired, against, strict=True)):
        example, whole = describe_example(case.example), Decoded.of_record(full)
        exits = np.array([-1 if step is None else step for step in fired_at])  # -1: never
        steps[:, column] = np.where(exits < 0, len(case.trace), exits + 1)
        for step in {*fired_at}:
            rows = exits == (-1 if step is None else step)
            measured = [loss(whole, case.decoded_at(step), example) for loss in losses]
            found[:, rows, column] = np.array(measured)[:, None]
    return steps, found


def find_exits(traces: Sequence[Trace], rules: Sequence[Stop], region: Region | None = None) -> list[list[int | None]]:
    """Return `trace.replay(rule, region)` for every trace and rule.

    A rule treats the rows of a batch independently, so the steps of many traces are evaluated as one batch.
    """
    found: list[list[int | None]] = []
    for fired in read_traces(traces, lambda *batch: torch.stack(evaluate_rules(rules, *batch), dim=1), region):
        ever, first = fired.any(dim=0).tolist(), fired.int().argmax(dim=0).tolist()  # of [steps, rules]
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


def read_traces(
    traces: Sequence[Trace], read: Callable[[JoinedBeliefs, DecodeState], Tensor], region: Region | None = None
) -> list[Tensor]:
    """Return what `read` says about the steps of each trace, in the order of the traces. [steps, ...] each

    It is called with the steps of many traces as the rows of one batch.
    """
    found: dict[int, Tensor] = {}
    for places in _batch_places(traces):
        some = [traces[place] for place in places]
        rows = read(JoinedBeliefs.of(some), _join_states([trace.states(region) for trace in some]))
        found |= zip(places, torch.split(rows, [len(trace) for trace in some]), strict=True)
    return [found[place] for place in range(len(traces))]


def _batch_places(traces: Sequence[Trace]) -> Iterator[list[int]]:
    """Yield the places of traces that can share a batch: those whose requests could."""
    kinds: dict[tuple[Recipe, int], list[int]] = defaultdict(list)
    for place, trace in enumerate(traces):
        kinds[trace.request.kind].append(place)
    for places in kinds.values():
        yield from (places[start : start + TRACES_PER_BATCH] for start in range(0, len(places), TRACES_PER_BATCH))


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

"""What every rule of a family makes of every example, replayed on traces: the steps it takes, and what it loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foretell.engine.certificate import LOSSES
from foretell.engine.trace import Trace
from foretell.errors import one_of
from foretell.lab.replays import Case
from foretell.protocols import Region, Stop

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Rules by examples."""

    steps: Array  # [rules, n] taken until the text is there
    full: Array  # [n] taken by the whole decoding
    changed: Array  # [rules, n] whether the answer is another one than the whole decoding's
    lost: Array  # [rules, n] whether it is wrong where the whole decoding's is right

    def losses(self, loss: str) -> Array:
        """Zeros and ones. [rules, n]"""
        one_of("loss", loss, LOSSES)
        return (self.changed if loss == "consistency" else self.lost).astype(float)

    def speedups(self) -> Array:
        """Mean steps of the whole decoding over each rule's. [rules]"""
        ratio: Array = self.full.mean() / self.steps.mean(axis=1)
        return ratio


def outcomes(cases: Sequence[Case], rules: Sequence[Stop], region: Region | None = None) -> Outcomes:
    """Replay `rules` on every case, on the recipe's region or another one."""
    shape = (len(rules), len(cases))
    steps, changed, lost = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for column, case in enumerate(cases):
        found = exits(case.trace, rules, region)
        answers = {step: case.emitted(step) for step in {*found} if step is not None}
        for row, step in enumerate(found):
            answer, right = (case.record.answer, case.record.correct) if step is None else answers[step]
            steps[row, column] = len(case.trace) if step is None else step + 1
            changed[row, column] = answer != case.record.answer
            lost[row, column] = case.record.correct and not right
    return Outcomes(steps, np.array([len(case.trace) for case in cases]), changed, lost)


def exits(trace: Trace, rules: Sequence[Stop], region: Region | None = None) -> list[int | None]:
    """`trace.replay` of every rule; what does not depend on the rule is made once."""
    states = trace.states(region)
    fired = torch.stack([rule(trace, states).settled for rule in rules])  # [rules, T]
    ever, first = fired.any(dim=1).tolist(), fired.int().argmax(dim=1).tolist()
    return [step if fires else None for fires, step in zip(ever, first, strict=True)]

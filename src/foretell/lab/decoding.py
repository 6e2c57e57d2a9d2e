"""Many examples through the engine's scheduler, with the gap at which each early commit happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from foretell.decode import Step
from foretell.engine.engine import Completion, Engine, Prompt
from foretell.engine.options import Order
from foretell.engine.scheduler import Outcome, Row, Scheduler
from foretell.policies.stop.prophet import Prophet
from foretell.protocols import Stop
from foretell.state import DecodeState


class Decoded(NamedTuple):
    place: int  # of the prompt
    completion: Completion
    gap: float | None  # at the early commit, if there was one and its rule watches a gap


class Gauging(Scheduler):
    """A scheduler that reads the gauge of rows that settle."""

    gaps: dict[int, float]

    def _outcome(self, row: Row, index: int, state: DecodeState, taken: Step) -> Outcome:
        rule = gauged(row.request.recipe.stop)
        if rule is not None and taken.settled[index]:
            canvas = state.canvas.clone()
            canvas[:, state.prompt_length :][taken.unmasked] = state.mask_id
            seen = replace(state, canvas=canvas, step=taken.index, answer=taken.answer)  # as the rule saw it
            self.gaps[row.ticket] = float(rule.gauge(taken.beliefs, seen).value[index])
        return super()._outcome(row, index, state, taken)


def gauged(stop: Stop) -> Prophet | None:
    """The rule that watches a gap, alone or in a combination."""
    if isinstance(stop, Prophet):
        return stop
    return next((rule for rule in map(gauged, getattr(stop, "rules", ())) if rule is not None), None)


def decode_all(
    engine: Engine, asked: Sequence[tuple[Prompt, Order]], batch_size: int, trace: bool = False
) -> Iterator[Decoded]:
    """Decode prompts that may be laid out differently, in the order in which they finish."""
    scheduler = Gauging(engine.model, engine.codec.end_ids, batch_size, trace, engine.device)
    scheduler.gaps = {}
    for outcome in scheduler.run([engine.request(prompt, order) for prompt, order in asked]):
        completion = engine._completion(outcome, asked[outcome.ticket][1])
        yield Decoded(outcome.ticket, completion, scheduler.gaps.get(outcome.ticket))

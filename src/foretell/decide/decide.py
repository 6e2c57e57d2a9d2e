"""Answer questions about inputs: `engine.decide`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from foretell.decide.answers import Decision
from foretell.decide.options import DecideOptions
from foretell.decide.plan import Ask, DecisionPlan, Input, Job
from foretell.decide.questions import Questions
from foretell.engine.engine import Engine
from foretell.engine.outcome import FailedRequest, Outcome
from foretell.engine.prompt_kinds import is_single
from foretell.engine.scheduler import Scheduler
from foretell.engine.threads import with_threads
from foretell.errors import ForetellError


def decide(
    engine: Engine, given: Any, questions: Questions, batch_size: int = 8, **options: Unpack[DecideOptions]
) -> Decision | list[Decision]:
    """Answer questions about one input or a list of them. Raises the error of an input that fails."""
    plan = DecisionPlan.prepare(engine, questions, **options)
    if is_single(given):
        return _first(decide_iter(engine, [given], plan, batch_size))
    done = dict(decide_iter(engine, given, plan, batch_size))
    decisions = []
    for place in range(len(given)):
        one = done[place]
        if isinstance(one, ForetellError):
            raise type(one)(f"inputs[{place}]: {one}") from one
        decisions.append(one)
    return decisions


def _first(done: Iterator[tuple[int, Decision | ForetellError]]) -> Decision:
    ((_, one),) = done
    if isinstance(one, ForetellError):
        raise one
    return one


def decide_iter(
    engine: Engine, inputs: Sequence[Input], plan: DecisionPlan, batch_size: int = 8
) -> Iterator[tuple[int, Decision | ForetellError]]:
    """Decide about inputs in one batch; yields (index, decision or error) in the order in which they finish."""
    return with_threads(_run(engine, inputs, plan, batch_size), engine.threads)


def _run(
    engine: Engine, inputs: Sequence[Input], plan: DecisionPlan, batch_size: int
) -> Iterator[tuple[int, Decision | ForetellError]]:
    scheduler = engine.scheduler(batch_size)
    running: dict[int, tuple[int, Job, Ask]] = {}  # by ticket

    def submit(index: int, job: Job, asks: Sequence[Ask]) -> None:
        for ask in asks:
            running[scheduler.submit(ask.request, ask.reader)] = index, job, ask

    for index, one in enumerate(inputs):
        try:
            job = plan.start(one)
        except ForetellError as error:
            yield index, error
        else:
            submit(index, job, job.asks)
    while scheduler.busy:
        for outcome in scheduler.step():
            if outcome.ticket not in running:  # its input has failed in the same step
                continue
            index, job, ask = running.pop(outcome.ticket)
            if isinstance(outcome, FailedRequest):
                _drop(job, running, scheduler)
                yield index, outcome.error
            else:
                yield from _advance(index, job, ask, outcome, submit)
    engine.count(scheduler.usage)


def _drop(job: Job, running: dict[int, tuple[int, Job, Ask]], scheduler: Scheduler) -> None:
    """Cancel the requests of a job that are still running."""
    for ticket in [ticket for ticket, (_, other, _) in running.items() if other is job]:
        scheduler.cancel(ticket)
        del running[ticket]


def _advance(
    index: int, job: Job, ask: Ask, outcome: Outcome, submit: Any
) -> Iterator[tuple[int, Decision | ForetellError]]:
    try:
        submit(index, job, job.finish(ask, outcome))
    except ForetellError as error:
        yield index, error
    else:
        if job.decision is not None:
            yield index, job.decision

"""Supervise requests: decide how each one is decoded, which ones are audited, and what the audits change.

A supervisor has no threads and decodes nothing. The caller asks `plan` what to decode for each new request, and passes
every result to `record`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from foretell.certify.audit import AuditLog, AuditState, Entry, Event, Header, key_of
from foretell.certify.losses import LOSSES, OLD_NAMES, Decoded, Loss, find_loss
from foretell.engine.certificate import Certificate
from foretell.engine.completion import Completion, Failure
from foretell.engine.engine import Engine
from foretell.engine.masked_text import MaskedText
from foretell.engine.options import RequestTemplate
from foretell.engine.outcome import Outcome, Usage
from foretell.engine.prompt_files import FilePrompt
from foretell.engine.prompt_kinds import Prompt
from foretell.engine.trace import Trace
from foretell.errors import RequestError, show
from foretell.evaluation.benchmark import Benchmark, Example
from foretell.evaluation.benchmarks import fill, prompts
from foretell.evaluation.run import grade
from foretell.policies.sample.greedy import Greedy
from foretell.policies.stop.never import Never
from foretell.policies.verify.trust import Trust
from foretell.recipes.recipe import Recipe

IN_FULL = "decoded in full, because an audit raised an alarm"


@dataclass(frozen=True, slots=True)
class Subject:
    """Computes losses from the results of one kind of request."""

    engine: Engine
    loss: Loss
    fills: bool

    @property
    def benchmark(self) -> Benchmark:
        return fill.Fill() if self.fills else prompts.Prompts()

    def example_of(self, one: FilePrompt) -> Example:
        """Return a request as an example. Raises RequestError if the loss needs an answer that it does not have."""
        example = fill.example_of(one) if self.fills else prompts.example_of(one)
        if self.loss.labelled and one.answer is None:
            raise RequestError(f'{one.where}: the loss {self.loss.name} needs an "answer" in every line')
        return example

    def prompt_of(self, one: FilePrompt) -> Prompt:
        return MaskedText(one.prompt) if self.fills else one.prompt

    def measure(self, one: FilePrompt, full: Completion, fast: Completion) -> float:
        example = {"id": one.id, "prompt": one.prompt, "answer": one.answer, "label": one.label}
        return self.loss(self._decoded(one, full), self._decoded(one, fast), example)

    def _decoded(self, one: FilePrompt, done: Completion) -> Decoded:
        graded = grade(self.benchmark, self.example_of(one), done)
        return Decoded(done.text, graded["answer"], done.generated, graded["correct"])

    def replay(self, one: FilePrompt, full: Completion, trace: Trace, template: RequestTemplate) -> Completion:
        """Return what a recipe that differs from full decoding only in its stopping rule would have emitted."""
        recipe = template.recipe
        step = trace.replay(recipe.stop, recipe.region)
        if step is None:
            return full
        outcome = Outcome(
            ticket=0,
            request=replace(trace.request, recipe=replace(recipe, steps=trace.request.recipe.steps)),
            tokens=tuple(trace.committed(step).tolist()),
            steps=step + 1,
            forwards=(step + 1) * full.forwards // full.steps,
            usage=Usage(),
            exit=step,
            finish="settled",
            seconds=0.0,
            value=None,
            measure=None,
            forced=0,
            trace=None,
        )
        return self.engine.complete(outcome, self.prompt_of(one), template)


def can_replay(recipe: Recipe, full: Recipe) -> bool:
    """Return whether full decoding's trace says what a recipe would have emitted."""
    checks = recipe.verify != Trust() or (recipe.region.sought and recipe.cache.stores)
    return not checks and replace(recipe, stop=Never()) == full


@dataclass(frozen=True, slots=True)
class Task:
    """One decoding of a request."""

    one: FilePrompt
    key: str
    template: RequestTemplate
    rung: int
    served: bool  # whether its result is the answer


@dataclass(slots=True)
class _Audit:
    """A request that is being audited."""

    one: FilePrompt
    used: int
    rungs: tuple[int, ...]  # that are decoded
    replayed: tuple[int, ...]  # that are replayed on full decoding's trace
    results: dict[int, Completion | Failure] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return self.results.keys() >= {0, *self.rungs}


class Supervisor:
    """Watches the recipe of one template in use, compared with `full` decoding; `Climb` watches a ladder.

    With `falls_back`, requests are decoded in full after an alarm.
    """

    def __init__(self, subject: Subject, log: AuditLog, full: RequestTemplate, *, falls_back: bool = False) -> None:
        check_greedy(full)
        self.subject, self.log, self.falls_back = subject, log, falls_back
        self.templates = [full]  # one per rung
        self.state: AuditState | None = None  # None: the log has not been started
        self._audits: dict[str, _Audit] = {}  # by key, in the order of arrival

    def start(self, header: Header, fast: Sequence[RequestTemplate]) -> None:
        """Start or continue the log. `fast` has the templates of rungs 1, 2, ..."""
        check_greedy(*fast)
        self.templates = [self.templates[0], *fast]
        self.state = self.log.start(header)

    @property
    def reacts(self) -> bool:
        """Whether audits change how later requests are decoded, so that they should not wait for all of these."""
        return self.falls_back

    def plan(self, one: FilePrompt) -> list[Task]:
        """Return what to decode for a request that arrives; the first task gives the answer."""
        rung = self._serving(one.label)
        return self._plan(one, rung, Task(one, key_of(one.id, one.prompt), self._template(rung), rung, served=True))

    def plan_missing(self, one: FilePrompt) -> list[Task]:
        """Return what to decode for a request that was answered before an interruption, but perhaps not audited."""
        return self._plan(one, self._serving(one.label), None)

    def _plan(self, one: FilePrompt, used: int, answer: Task | None) -> list[Task]:
        """Return the answer's task and those of the audit."""
        served = [] if answer is None else [answer]
        key = key_of(one.id, one.prompt)
        if self.state is None or key in self.log.keys or key in self._audits or key in self.state.header.pilot:
            return served
        live, replayed = self._rungs(used, chosen=self.state.header.chooses(key, self.state.share))
        if not live and (not replayed or answer is None):  # an answer of an interrupted run has no trace any more
            return served
        self._audits[key] = _Audit(one, used, live, replayed)
        rungs = [rung for rung in (0, *live) if answer is None or rung != used]
        tasks = [*served, *(Task(one, key, self._template(rung), rung, served=False) for rung in rungs)]
        return [_with_trace(task) if replayed and task.rung == 0 else task for task in tasks]

    def _serving(self, label: str | None) -> int:
        """Return the rung that a request gets."""
        assert self.state is not None, "an audit starts its log at once"
        return self.state.serving(label) if self.falls_back else self.state.rung

    def _rungs(self, used: int, *, chosen: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the rungs to decode for a request besides full decoding, and those to replay."""
        return ((used,) if chosen and used else ()), ()

    def _template(self, rung: int) -> RequestTemplate:
        template = self.templates[rung]
        return template if rung else replace(template, notes=(*template.notes, IN_FULL))

    def awaits(self, task: Task) -> bool:
        """Return whether an audit needs the result of a task. Audits that arrived later wait for it, too."""
        return task.key in self._audits

    def record(self, task: Task, done: Completion | Failure) -> list[Event]:
        """Take the result of a task, and return what changes with it."""
        audit = self._audits.get(task.key)
        if audit is None:
            return []
        audit.results[task.rung] = done
        events: list[Event] = []
        while self._audits and (first := next(iter(self._audits.items())))[1].finished:
            key, audit = first
            del self._audits[key]
            events += self.log.add(self._entry(key, audit))
        return events

    def _entry(self, key: str, audit: _Audit) -> Entry:
        one, results, rungs = audit.one, audit.results, range(len(self.templates))
        full, answer = results[0], results[audit.used]
        losses: list[float | None] = [None] * (len(self.templates) - 1)
        forwards: list[int | None] = [_forwards(results.get(rung)) for rung in rungs]
        exited = answer.exit if isinstance(answer, Completion) else None
        if isinstance(full, Failure):
            return Entry(one.id, key, one.label, audit.used, losses, forwards, exited, str(full))
        for rung in (*audit.rungs, *audit.replayed):
            fast: Any = results.get(rung)
            if rung in audit.replayed:
                assert full.trace is not None, "it was asked for"
                fast = self.subject.replay(one, full, full.trace, self.templates[rung])
                forwards[rung] = fast.forwards
            losses[rung - 1] = 1.0 if isinstance(fast, Failure) else self.subject.measure(one, full, fast)
        return Entry(one.id, key, one.label, audit.used, losses, forwards, exited)


def _with_trace(task: Task) -> Task:
    return replace(task, template=replace(task.template, trace=True))


def check_greedy(*templates: RequestTemplate) -> None:
    """Raise RequestError if tokens are sampled: two decodings would differ by chance."""
    for template in templates:
        if template.recipe.sample != Greedy():
            raise RequestError(
                "audits compare two decodings of a request, which differ by chance if tokens are sampled; "
                "leave temperature, top_p and top_k out"
            )


def _forwards(done: Completion | Failure | None) -> int | None:
    return done.forwards if isinstance(done, Completion) else None


def supervise(
    engine: Engine,
    log: AuditLog,
    template: RequestTemplate,
    certificate: Certificate,
    share: float,
    *,
    loss: str | None = None,
    falls_back: bool = False,
) -> Supervisor:
    """Return the supervisor that audits a share of requests with this template, which uses a certificate.

    `loss` has to name a loss of the user's own again, because its code is run.
    """
    full = replace(template, recipe=certificate.compared_with, notes=())
    if full.recipe == template.recipe:
        raise RequestError(
            "there is nothing to audit: this certificate's recipe, or what replaces it, is full decoding"
        )
    measured = loss_of(certificate, loss)
    header = Header(
        risk=certificate.risk,
        confidence=certificate.confidence,
        loss=measured.name,
        graded=measured.graded,
        share=share,
        against=str(full.recipe),
        rungs=[str(template.recipe)],
        certificate=hashlib.sha256(repr(certificate).encode()).hexdigest(),
        **about(engine, template),
    )
    made = Supervisor(Subject(engine, measured, template.fills), log, full, falls_back=falls_back)
    made.start(header, [template])
    return made


def loss_of(certificate: Certificate, given: str | None) -> Loss:
    """Return the loss of a certificate. A loss of the user's own is imported only if it is `given`, too."""
    name = certificate.loss
    if given is not None and find_loss(given).name != OLD_NAMES.get(name, name):
        raise RequestError(f"the recipe was certified for the loss {name}, not {given}")
    if given is None and name not in LOSSES and name not in OLD_NAMES:
        raise RequestError(
            f"the recipe was certified for a loss of your own, which has to be named again: {show(name)}"
        )
    return find_loss(name)


def about(engine: Engine, template: RequestTemplate) -> dict[str, Any]:
    """Return the parts of a header that say what decodes which window."""
    layout = template.layout
    window: dict[str, Any] = {
        "window": layout.length,
        "answer": None if layout.answer is None else list(layout.answer),
        "pins": [list(pin) for pin in layout.pins],
    }
    model = {"model": engine.name, **asdict(engine.backend)}
    return model | {"fills": template.fills} | ({} if template.fills else window)

"""Climb: start with full decoding, and earn faster rungs of a ladder from the requests themselves.

The first requests, the pilot, place the ladder and are no evidence. Of the later ones, a random share is decoded in
full and with the rungs that are not earned yet. The next rung is earned when a test has rejected "its risk is above
eps" at delta, and those of all rungs before it have. A bad rung is earned only if the first bad one on the ladder
passes its own test, which happens with a probability of at most delta, so any earned rung may be used: the fastest is.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from foretell.certify.audit import AuditLog, AuditState, Event, Header, key_of
from foretell.certify.ladders import TOLERANCES, TRANSFERS, ModelScale
from foretell.certify.losses import Loss
from foretell.certify.supervise import Subject, Supervisor, Task, about, can_replay
from foretell.engine.certificate import Certificate
from foretell.engine.completion import Completion, Failure
from foretell.engine.engine import Engine
from foretell.engine.options import RequestTemplate
from foretell.engine.prompt_files import FilePrompt
from foretell.errors import RequestError, whole
from foretell.policies.stop.families import FAMILIES
from foretell.policies.stop.never import Never
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import untrusted
from foretell.version import __version__

PILOT = 100  # requests
EXPLORE = 0.2  # the share of audited requests during the climb
REST = 0.02  # and afterwards
SPACING = 3  # levels of TOLERANCES between two rungs
CAUTIOUS = (-12, -8, -4)  # levels of the first rungs: the pilot shows few wrong drafts
SAFER = 2  # settings of a family between the fastest one without a loss in the pilot, and the one on the ladder


class Climb(Supervisor):
    """Serves requests with the fastest rung that has been earned."""

    def __init__(
        self,
        subject: Subject,
        log: AuditLog,
        full: RequestTemplate,
        header: dict[str, Any],
        *,
        pilot: int = PILOT,
        ahead: int | None = None,
    ) -> None:
        """`header` has everything but the rungs. `ahead`: rungs that are tested at the same time; None: all."""
        super().__init__(subject, log, full)
        whole("pilot", pilot, 1, error=RequestError)
        if ahead is not None:
            whole("ahead", ahead, 1, error=RequestError)
        if full.recipe.stop != Never():
            raise RequestError(f"a climb starts with full decoding, which never stops early, got {full.recipe}")
        self.pilot, self.ahead, self._header = pilot, ahead, header
        self._seen: list[tuple[FilePrompt, Completion]] = []  # of the pilot
        self._keys: list[str] = []  # of all requests before the ladder was placed
        if log.state is not None:
            self._use(log.state.header.rungs)

    @property
    def reacts(self) -> bool:
        return True

    def plan(self, one: FilePrompt) -> list[Task]:
        if self.state is not None:
            return super().plan(one)
        self._keys.append(key_of(one.id, one.prompt))
        return [Task(one, self._keys[-1], replace(self.templates[0], trace=True), 0, served=True)]

    def record(self, task: Task, done: Completion | Failure) -> list[Event]:
        if self.state is not None:
            return super().record(task, done)
        if isinstance(done, Completion):
            self._seen.append((task.one, done))
        if len(self._seen) < self.pilot:
            return []
        rungs = place_ladder(self.subject, self._seen, self.templates[0], self._header["share"])
        self._use([str(recipe) for recipe in rungs])
        event = Event("ladder", 0, len(self._seen))
        self._seen.clear()
        return [event]

    def _use(self, rungs: list[str]) -> None:
        """Start or continue the log with these rungs."""
        full = self.templates[0]
        with untrusted():  # they may come from a file
            recipes = [parse(text) for text in rungs]
        self.start(
            Header(**self._header, rungs=rungs, climbs=True, pilot=self._keys),
            [replace(full, recipe=recipe, notes=()) for recipe in recipes],
        )
        self._free = {rung for rung, recipe in enumerate(recipes, 1) if can_replay(recipe, full.recipe)}

    def _serving(self, label: str | None) -> int:
        return 0 if self.state is None else self.state.serving(label)

    def _rungs(self, used: int, *, chosen: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert self.state is not None, "there is a ladder"
        explored = [rung for rung in self.state.explored(self.ahead) if rung != used]
        in_full = chosen or used == 0
        live = [rung for rung in explored if rung not in self._free]
        return (
            tuple([used] * (used > 0) + live if chosen else ()),
            tuple(rung for rung in explored if rung in self._free and in_full),
        )

    def _template(self, rung: int) -> RequestTemplate:
        return self.templates[rung]


def climb(
    engine: Engine,
    log: AuditLog,
    template: RequestTemplate,
    loss: Loss,
    risk: float,
    confidence: float,
    *,
    explore: float = EXPLORE,
    rest: float = REST,
    pilot: int = PILOT,
    ahead: int | None = None,
    options: dict[str, Any] | None = None,
) -> Climb:
    """Return the supervisor of a climb from full decoding with this template.

    `options` are those of `generate` that describe the window, for the certificate of the rung in use.
    """
    goal: dict[str, Any] = {"risk": risk, "confidence": confidence, "loss": loss.name, "graded": loss.graded}
    header = (
        goal
        | {"share": explore, "rest": rest}
        | {"against": str(template.recipe), "options": options or {}}
        | about(engine, template)
    )
    Header(**header, rungs=[str(template.recipe)])  # raises now, and not after the pilot, if a number is wrong
    return Climb(Subject(engine, loss, template.fills), log, template, header, pilot=pilot, ahead=ahead)


def place_ladder(
    subject: Subject, pilot: Sequence[tuple[FilePrompt, Completion]], full: RequestTemplate, share: float
) -> list[Recipe]:
    """Return rungs from safe to fast: perhaps a stopping rule, then transfers with thresholds on the model's scale."""
    scale = ModelScale.of([done.trace for _, done in pilot if done.trace is not None])
    base = full.recipe if full.fills else replace(full.recipe, stop_at_eos=True)
    make = TRANSFERS["threshold"].make
    bars = [scale.bar("confidence", level) for level in (*CAUTIOUS, *range(0, len(TOLERANCES), SPACING))]
    transfers = [replace(base, transfer=make(bar)) for bar in bars]
    return list(dict.fromkeys([*_place_stop(subject, pilot, full, share), *transfers]))


def _place_stop(
    subject: Subject, pilot: Sequence[tuple[FilePrompt, Completion]], full: RequestTemplate, share: float
) -> Iterable[Recipe]:
    """Yield full decoding with a stopping rule that lost nothing in the pilot.

    It is worth its place only if it saves more than the full decodings of audited requests cost.
    """
    watched = full.layout.answer is not None or full.recipe.region.sought
    if full.fills or not watched or subject.loss.name not in ("answer", "success"):
        return  # a rule that watches the answer changes the rest of the text
    rules = FAMILIES["entropy"].rules

    def stop(at: int) -> list[tuple[FilePrompt, Completion, Completion]]:
        template = replace(full, recipe=replace(full.recipe, stop=rules[at]))
        return [(one, done, subject.replay(one, done, done.trace, template)) for one, done in pilot if done.trace]

    def loses(at: int) -> bool:
        return any(subject.measure(one, done, early) > 0 for one, done, early in stop(at))

    boldest = bisect_left(range(len(rules)), True, key=loses) - 1  # the rules are nested
    if boldest < SAFER:
        return
    made = stop(boldest - SAFER)
    if sum(early.forwards for *_, early in made) < (1 - share) * sum(done.forwards for _, done, _ in made):
        yield replace(full.recipe, stop=rules[boldest - SAFER])


def export(state: AuditState) -> Certificate:
    """Return the rung in use as a certificate. Raises RequestError if the log is not that of a climb.

    If labels had an alarm, it is a rung that they get too, because a certificate is for all requests.
    """
    header, rung = state.header, state.shared
    if not header.climbs:
        raise RequestError("this log audits a recipe that has its certificate already; only a climb can be exported")
    losses = state.losses[rung]
    alarms = sum(event.kind == "alarm" for event in state.events)
    says = (
        f"the risk ({header.loss}) is at most {header.risk:.4g} with confidence {header.confidence:g}, by a test on "
        f"{len(losses)} requests, which may have looked at any time"
        if rung
        else f"no rung that is faster has been earned with {state.audits} audits"
        + (f" and {alarms} alarms" if alarms else "")
    )
    return Certificate(
        recipe=[header.against, *header.rungs][rung],
        certified=rung > 0,
        says=says,
        against=header.against,
        fills=header.fills,
        window=header.window,
        answer=header.answer,
        pins=header.pins,
        options=header.options,
        model=header.model,
        model_sha256=header.model_sha256,
        dtype=header.dtype,
        device=header.device,
        compile=header.compile,
        torch=header.torch,
        task=None,
        examples_sha256=hashlib.sha256(header.seed.encode()).hexdigest(),
        examples=max(1, len(losses)),
        pilot=len(header.pilot),
        seed=0,
        loss=header.loss,
        risk=header.risk,
        confidence=header.confidence,
        look=1,
        delta=round(header.delta, 12),
        empirical_risk=sum(losses) / max(1, len(losses)),
        upper_bound=state.bound(losses) if rung else 0.0,
        cost="forwards",
        speedup=state.speedup(rung) or 1.0,
        ladder="climb",
        rungs=header.rungs,
        rung=rung - 1 if rung else None,
        version=__version__,
    )

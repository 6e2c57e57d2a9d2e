"""`foretell audit`, which shows the results in an audit log, and the options of `generate` that write one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from foretell.cli.wording import count
from foretell.errors import RequestError, one_of, within

if TYPE_CHECKING:
    from rich.table import Table

    from foretell.certify.audit import AuditState, Event
    from foretell.certify.supervise import Supervisor, Task
    from foretell.engine.completion import Completion, Failure
    from foretell.engine.engine import Engine
    from foretell.engine.options import Options, RequestTemplate
    from foretell.engine.prompt_files import FilePrompt

ON_DRIFT = ("warn", "full")
CLIMBS = ("state", "confidence", "explore", "pilot", "ahead")  # options that need --risk


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The options that audit a certified recipe."""

    log: Path
    share: float
    on_drift: str = "warn"
    loss: str | None = None

    def __post_init__(self) -> None:
        within("--audit", self.share, 0.0, 1.0, RequestError)
        one_of("--on-drift", self.on_drift, ON_DRIFT, RequestError)

    @contextmanager
    def open(self, engine: Engine, template: RequestTemplate, given: Options) -> Iterator[Supervisor]:
        """Yield a supervisor of requests with this template. Its log is locked meanwhile."""
        from foretell.certify.audit import open_log  # noqa: PLC0415
        from foretell.certify.supervise import supervise  # noqa: PLC0415

        if given.certificate is None:
            raise RequestError(
                "--audit needs a certified recipe, which states its risk: --recipe tuned.json, made by foretell tune; "
                "without one, use --risk, which starts with full decoding and tests faster recipes on the requests"
            )
        falls_back = self.on_drift == "full"
        with open_log(self.log) as log:
            yield supervise(engine, log, template, given.certificate, self.share, loss=self.loss, falls_back=falls_back)


@dataclass(frozen=True, slots=True)
class ClimbOptions:
    """The options that start with full decoding and test faster rungs on the requests."""

    log: Path
    risk: float
    confidence: float = 0.95
    loss: str = "answer"
    explore: float = 0.2
    rest: float = 0.02
    pilot: int = 100
    ahead: int | None = None

    def __post_init__(self) -> None:
        within("--explore", self.explore, 0.0, 1.0, RequestError)
        within("--audit", self.rest, 0.0, 1.0, RequestError)

    @contextmanager
    def open(self, engine: Engine, template: RequestTemplate, given: Options) -> Iterator[Supervisor]:
        """Yield a supervisor of requests with this template. Its log is locked meanwhile."""
        from foretell.certify.audit import open_log  # noqa: PLC0415
        from foretell.certify.climb import climb  # noqa: PLC0415
        from foretell.certify.losses import find_loss  # noqa: PLC0415
        from foretell.engine.certificate import WINDOW_OPTIONS  # noqa: PLC0415

        if given.certificate is not None:
            raise RequestError(
                "--risk starts with full decoding, without a certified recipe; --audit checks a certified one"
            )
        chosen = {name: getattr(given, name) for name in (*WINDOW_OPTIONS, "chat")}
        options = {name: value for name, value in chosen.items() if value is not None}
        shares = {"explore": self.explore, "rest": self.rest}
        more: dict[str, Any] = shares | {"pilot": self.pilot, "ahead": self.ahead, "options": options}
        with open_log(self.log) as log:
            yield climb(engine, log, template, find_loss(self.loss), self.risk, self.confidence, **more)


def read_supervision(given: dict[str, Any]) -> AuditOptions | ClimbOptions | None:
    """Return the audit or climb that the options ask for, or None. Raises RequestError if they do not fit together."""
    needs = {"audit_log": "audit", "on_drift": "audit"} | dict.fromkeys(CLIMBS, "risk")
    for name, other in needs.items():
        if given[name] is not None and (given[other] is None or (other == "audit" and given["risk"] is not None)):
            option = f"--{name.replace('_', '-')}"
            alone = " without --risk" if other == "audit" else ""
            raise RequestError(f"{option} needs --{other}{alone}")
    if given["audit"] is None and given["risk"] is None:
        if given["loss"] is not None:
            raise RequestError("--loss needs --audit or --risk")
        return None
    if given["watch"]:
        raise RequestError("--watch shows one request at a time and cannot be combined with --audit or --risk")
    if given["risk"] is None:
        log = _log_of(given, "audit_log", "audit")
        return AuditOptions(log, given["audit"], given["on_drift"] or "warn", given["loss"])
    chosen = {name: given[name] for name in ("risk", "loss", *CLIMBS[1:]) if given[name] is not None}
    rest = {} if given["audit"] is None else {"rest": given["audit"]}
    return ClimbOptions(_log_of(given, "state", "climb"), **chosen, **rest)


def _log_of(given: dict[str, Any], name: str, suffix: str) -> Path:
    """Return the log's path: as given, or next to the results."""
    log: Path | None = given[name]
    if log is not None:
        return log
    if given["out"] is None:
        raise RequestError(f"audits need a file for their log: give --{name.replace('_', '-')} FILE or --out FILE")
    out: Path = given["out"]
    return out.with_name(f"{out.name}.{suffix}.jsonl")


def decode(
    supervisor: Supervisor,
    asked: Sequence[FilePrompt],
    answered: Sequence[FilePrompt],
    batch_size: int,
    traced: bool,
) -> Iterator[tuple[int, Completion | Failure]]:
    """Decode requests and audits; yields the requests' results with their index, in the order in which they finish.

    Audits wait until all requests are decoded, unless they may change how later requests are decoded. `answered` are
    requests that an interrupted run has answered, some of them perhaps without their audits.
    """
    from foretell.engine.completion import Completion  # noqa: PLC0415

    subject = supervisor.subject
    tasks: list[tuple[int, Task]] = []

    def ready(index: int, task: Task) -> Any:
        tasks.append((index, task))
        template = replace(task.template, trace=True) if traced and task.served else task.template
        return subject.prompt_of(task.one), template

    def feed() -> Iterator[Any]:
        audits = deque(task for one in answered for task in supervisor.plan_missing(one))
        for index, one in enumerate(asked):
            while supervisor.reacts and audits:
                yield ready(-1, audits.popleft())
            answer, *more = supervisor.plan(one)
            yield ready(index, answer)
            audits.extend(more)
        for task in audits:
            yield ready(-1, task)

    for one in (*answered, *asked):
        subject.example_of(one)  # raises before the first step
    pairs = feed() if supervisor.reacts else list(feed())
    for number, done in subject.engine.generate_iter(pairs, batch_size=batch_size, errors="return"):
        index, task = tasks[number]
        report(supervisor, supervisor.record(task, done))
        if task.served:
            yield index, replace(done, trace=None) if isinstance(done, Completion) and not traced else done


def report(supervisor: Supervisor, events: Sequence[Event]) -> None:
    """Print on stderr what an audit changes."""
    from foretell.cli.console import say  # noqa: PLC0415

    for event in events:
        assert supervisor.state is not None, "events come from a log"
        style = "yellow" if event.kind == "alarm" else "green"
        say(describe_event(supervisor.state, event, supervisor.falls_back), style=style)


def describe_event(state: AuditState, event: Event, falls_back: bool = False) -> str:
    """Return an event as a sentence."""
    header = state.header
    recipes, rungs = [header.against, *header.rungs], len(header.rungs)
    goal = f"{header.risk:.4g} ({header.loss}), with confidence {header.confidence:g}"
    if event.kind == "ladder":
        return f"pilot of {event.audits} requests done: a ladder of {rungs} rungs, which have to be earned"
    if event.kind == "earned":
        return f"rung {event.rung} of {rungs} earned with {event.audits} audits, risk at most {goal}"
    if event.kind == "use":
        which = f"rung {event.rung} of {rungs}, the fastest earned one," if event.rung else "full decoding"
        return f"{which} is used from now on: {recipes[event.rung]}"
    who = "" if event.label is None else f" for requests with the label {event.label!r}"
    then = f"; {'later' if event.label is None else 'these'} requests are decoded in full" if falls_back else ""
    return f"warning: alarm after {event.audits} audits{who}: the risk of {recipes[event.rung]} is above {goal}{then}"


def summarise(state: AuditState) -> str:
    """Return the state on one line."""
    losses, rungs = state.losses[state.rung], len(state.header.rungs)
    changed = sum(loss > 0 for loss in losses)
    alarms = sum(event.kind == "alarm" for event in state.events)
    shown = [f"audited {len(losses)}"]
    if state.header.climbs:
        shown = [
            f"rung {state.rung} of {rungs} in use ({state.speedup(state.rung) or 1.0:.2f}x fewer forwards)",
            f"audited {state.audits}",
        ]
    if state.rung:
        mean = f" (mean loss {sum(losses) / len(losses):.2%})" if losses else ""
        bound = f"risk at most {state.bound(losses):.2%} with confidence {state.header.confidence:g}"
        shown += [f"changed {changed}{mean}", bound]
    return " · ".join((*shown, count(alarms, "alarm") if alarms else "no alarm"))


def audit(
    log: Annotated[Path, Argument(help="Log that --audit or --risk has written.")],
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
    export: Annotated[Path | None, Option(help="Write the recipe in use to this file, as a certified recipe.")] = None,
) -> None:
    """Show the results of audits: risk, evidence and alarms.

    The log may still be growing, for example while a server writes it.

    foretell audit out.jsonl.audit.jsonl
    """
    from foretell.certify.audit import read_log  # noqa: PLC0415
    from foretell.cli.console import out, say  # noqa: PLC0415

    state = read_log(log)
    if export is not None:
        from foretell.certify import climb  # noqa: PLC0415

        climb.export(state).save(export)
        say(f"wrote {export}", style="dim")
    if json:
        from json import dumps  # noqa: PLC0415

        print(dumps(as_json(state)))
        return
    header, console = state.header, out()
    goal = f"at most {header.risk:.4g} ({header.loss}) with confidence {header.confidence:g}"
    console.print(f"{header.model}, {header.dtype}: risk {goal}, against {header.against}", markup=False)
    console.print(summarise(state), markup=False)
    for event in state.events:
        console.print(describe_event(state, event), markup=False)
    if header.climbs:
        console.print("", rungs_table(state), "")
    if state.rung:
        console.print(groups_table(state))


def as_json(state: AuditState) -> dict[str, Any]:
    """Return the state as one JSON object."""
    header = state.header
    return {
        "model": header.model,
        "dtype": header.dtype,
        "goal": {"risk": header.risk, "confidence": header.confidence, "loss": header.loss},
        "recipe": [header.against, *header.rungs][state.rung],
        "against": header.against,
        "rung": state.rung,
        "earned": state.earned,
        "share": state.share,
        "audits": state.audits,
        "failed": state.failed,
        "groups": [
            {
                "label": label,
                "audits": len(losses),
                "mean_loss": sum(losses) / len(losses) if losses else None,
                "upper_bound": state.bound(losses),
                "evidence": state.evidence(label),
                "evidence_needed": 1 / state.level(label),
            }
            for label, losses in _groups(state)
        ],
        "rungs": [
            {
                "recipe": recipe,
                "audits": len(state.losses[rung]),
                "upper_bound": state.bound(state.losses[rung]),
                "evidence": exp(min(state.small[rung].log_peak, 700.0)),
                "evidence_needed": 1 / header.delta,
                "requests_needed": state.needed(rung),
                "speedup": state.speedup(rung),
            }
            for rung, recipe in enumerate(header.rungs, 1)
        ],
        "events": [asdict(event) for event in state.events],
    }


def rungs_table(state: AuditState) -> Table:
    """Return one row per rung of a climb: what it costs, and how far it is from being earned."""
    from rich.table import Table  # noqa: PLC0415

    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("rung", "audits", "mean loss", "risk at most", "evidence", "requests needed", "fewer forwards"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("recipe", overflow="fold")
    for rung, recipe in enumerate(state.header.rungs, 1):
        losses, faster, more = state.losses[rung], state.speedup(rung), state.needed(rung)
        if rung <= state.earned:
            wait = "in use" if rung == state.rung else "earned"
        else:
            wait = "" if more is None or rung > state.top else str(more)
        numbers = (
            f"{sum(losses) / len(losses):.2%}" if losses else "",
            f"{state.bound(losses):.2%}",
            f"{exp(min(state.small[rung].log_peak, 700.0)):.3g}",
            wait,
            "" if faster is None else f"{faster:.2f}x",
        )
        style = "bold" if rung == state.rung else ""
        shown.add_row(str(rung), str(len(losses)), *numbers, recipe, style=style)
    return shown


def _groups(state: AuditState) -> list[tuple[str | None, list[float]]]:
    return [(None, state.recent), *state.by_label.items()]


def groups_table(state: AuditState) -> Table:
    """Return one row for all requests, and one per label, about the rung in use."""
    from rich.table import Table  # noqa: PLC0415

    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown.add_column("requests")
    for heading in ("audits", "mean loss", "risk at most", "evidence against the goal", "alarm at"):
        shown.add_column(heading, justify="right")
    for label, losses in _groups(state):
        mean = f"{sum(losses) / len(losses):.2%}" if losses else ""
        numbers = (str(len(losses)), mean, f"{state.bound(losses):.2%}", f"{state.evidence(label):.3g}")
        shown.add_row("all" if label is None else label, *numbers, f"{1 / state.level(label):.3g}")
    return shown

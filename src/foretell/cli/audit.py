"""`foretell audit`: show what an audit log says; and the options of `generate` that write one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from foretell.errors import RequestError, one_of, within

if TYPE_CHECKING:
    from rich.table import Table

    from foretell.certify.audit import AuditState, Event
    from foretell.certify.supervise import Supervisor, Task
    from foretell.engine.certificate import Certificate
    from foretell.engine.completion import Completion, Failure
    from foretell.engine.engine import Engine
    from foretell.engine.options import RequestTemplate
    from foretell.engine.prompt_files import FilePrompt

ON_DRIFT = ("warn", "full")


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the user asked for: an audit of a certified recipe."""

    share: float
    log: Path
    on_drift: str = "warn"
    loss: str | None = None

    def __post_init__(self) -> None:
        within("--audit", self.share, 0.0, 1.0, RequestError)
        one_of("--on-drift", self.on_drift, ON_DRIFT, RequestError)

    @contextmanager
    def open(self, engine: Engine, template: RequestTemplate, certificate: Certificate | None) -> Iterator[Supervisor]:
        """Yield a supervisor of requests with this template. Its log is locked meanwhile."""
        from foretell.certify.audit import open_log  # noqa: PLC0415
        from foretell.certify.supervise import supervise  # noqa: PLC0415

        if certificate is None:
            raise RequestError(
                "--audit needs a certified recipe, which says how large the risk may be: --recipe tuned.json (foretell "
                "tune writes it)"
            )
        with open_log(self.log) as log:
            yield supervise(
                engine, log, template, certificate, self.share, loss=self.loss, falls_back=self.on_drift == "full"
            )


def make_supervision(given: dict[str, Any]) -> Supervision | None:
    """Return what the options of a command ask for, or None. Raises RequestError if they do not fit together."""
    if given["audit"] is None:
        for name in ("audit_log", "on_drift"):
            if given[name] is not None:
                raise RequestError(f"--{name.replace('_', '-')} is for audits: give --audit, the share of requests")
        return None
    if given["watch"]:
        raise RequestError("--watch shows one request at a time and cannot be combined with --audit")
    log = given["audit_log"]
    if log is None:
        if given["out"] is None:
            raise RequestError("--audit needs a file for its log: give --audit-log FILE, or --out")
        log = given["out"].with_name(f"{given['out'].name}.audit.jsonl")
    return Supervision(given["audit"], log, given["on_drift"] or "warn", given["loss"])


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
    """Say on stderr what an audit changes."""
    from foretell.cli.console import say  # noqa: PLC0415

    assert supervisor.state is not None or not events, "there is a log"
    for event in events:
        style = "green" if event.kind == "up" else "yellow"
        say(describe_event(supervisor.state, event, supervisor.falls_back), style=style)  # type: ignore[arg-type]


def describe_event(state: AuditState, event: Event, falls_back: bool) -> str:
    """Return an event as a sentence."""
    header = state.header
    recipe = [header.against, *header.rungs][event.rung]
    who = "" if event.label is None else f" for requests with the label {event.label!r}"
    then = f"; {'these' if event.label else 'later'} requests are decoded in full" if falls_back else ""
    return (
        f"warning: alarm after {event.audits} audits{who}: the risk of {recipe} is above {header.risk:.4g} "
        f"({header.loss}), with confidence {header.confidence:g}{then}"
    )


def summarise(state: AuditState) -> str:
    """Return the state on one line."""
    losses = state.losses[state.rung]
    changed = sum(loss > 0 for loss in losses)
    alarms = [event for event in state.events if event.kind == "alarm"]
    mean = f" (mean loss {sum(losses) / len(losses):.2%})" if losses else ""
    return " · ".join(
        (
            f"audited {len(losses)}",
            f"changed {changed}{mean}",
            f"risk at most {state.bound(losses):.2%} with confidence {state.header.confidence:g}",
            f"{len(alarms)} alarm{'s' * (len(alarms) != 1)}" if alarms else "no alarm",
        )
    )


def audit(
    log: Annotated[Path, Argument(help="A log that --audit wrote.")],
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what an audit log says, also while it is written: audits, risk, evidence and alarms.

    foretell audit out.jsonl.audit.jsonl
    """
    from foretell.certify.audit import read_log  # noqa: PLC0415
    from foretell.cli.console import out  # noqa: PLC0415

    state = read_log(log)
    if json:
        from json import dumps  # noqa: PLC0415

        print(dumps(as_json(state)))
        return
    header, console = state.header, out()
    goal = f"at most {header.risk:.4g} ({header.loss}) with confidence {header.confidence:g}"
    console.print(f"{header.model}, {header.dtype}: risk {goal}, against {header.against}", markup=False)
    console.print(summarise(state), markup=False)
    for event in state.events:
        console.print(describe_event(state, event, falls_back=False), markup=False)
    console.print(groups_table(state))


def as_json(state: AuditState) -> dict[str, Any]:
    """Return the state as one JSON object."""
    header = state.header
    return {
        "model": header.model,
        "dtype": header.dtype,
        "goal": {"risk": header.risk, "confidence": header.confidence, "loss": header.loss},
        "against": header.against,
        "recipe": [header.against, *header.rungs][state.rung],
        "share": state.share,
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
        "alarms": [{"label": one.label, "audits": one.audits} for one in state.events if one.kind == "alarm"],
    }


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

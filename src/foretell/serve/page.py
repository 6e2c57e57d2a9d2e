"""The page at `/`, and the two routes that only it uses: what the server offers, and replaying a stored run."""

from __future__ import annotations

from functools import partial
from mimetypes import guess_type
from pathlib import Path
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from torch import Tensor

from foretell.decide.plan import DecisionPlan
from foretell.decide.questions import Predicate
from foretell.engine.engine import Engine
from foretell.errors import ForetellError
from foretell.loop.checks import ask_stop
from foretell.loop.protocols import Stop
from foretell.policies.stop.families import use_token_clock
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.recipes.text import format_value
from foretell.serve.bodies import ReplayBody, read_body
from foretell.serve.examples import find_decision_examples, find_examples
from foretell.serve.offers import find_rules
from foretell.serve.problems import Problem, problem_of
from foretell.serve.reply import Json
from foretell.serve.service import Run, Service
from foretell.version import __version__

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes(service: Service) -> list[BaseRoute]:
    return [
        Route("/", partial(_send_file, "index.html")),
        Route("/static/{name}", _send_static),
        Route("/foretell/info", partial(_info, service)),
        Route("/foretell/replay", partial(_replay, service), methods=["POST"]),
    ]


async def _send_file(name: str, _: Request) -> Response:
    # Not a FileResponse, which answers a malformed Range with plain text; the files are small.
    return Response((STATIC / name).read_bytes(), headers=HEADERS, media_type=guess_type(name)[0])


async def _send_static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in {path.name for path in STATIC.iterdir()}:
        raise Problem(404, f"the page has no file {name!r:.80}", code="unknown_route")
    return await _send_file(name, request)


async def _info(service: Service, _: Request) -> Response:
    engine, default = service.engine, service.offers.default.name
    described = engine.layouts.get("layouts", {})
    first = engine.layouts.get("default")
    return Json(
        {
            "model": service.model,
            "about": engine.describe().partition(": ")[2],
            "version": __version__,
            "context": engine.context,
            "chat": engine.codec.template is not None,
            "key": service.needs_key,
            "decisions": True,
            "together": asks_together(engine),
            "recipes": [
                {
                    "name": one.name,
                    "about": one.about,
                    "recipe": one.text,
                    "default": name == default,
                    "stops": one.stops,
                }
                for name, one in service.offers.each.items()
            ],
            "layouts": [
                {"name": name, "window": one.get("max_new_tokens"), "default": name == first}
                for name, one in described.items()
            ],
            "examples": [one._asdict() for one in find_examples(engine)],
            "decision_examples": [one._asdict() for one in find_decision_examples(engine)],
            "rules": [
                {"name": name, "about": describe_rule(rule), "rule": format_value(rule)}
                for name, rule in find_rules().items()
                if rule != Never()
            ],
        }
    )


def asks_together(engine: Engine) -> bool:
    """Return whether a model's words suffice to ask several questions on one canvas."""
    try:
        DecisionPlan.prepare(engine, {"q1": Predicate(), "q2": Predicate()})
    except ForetellError:
        return False
    return True


def describe_rule(rule: Stop) -> str:
    """Return the first line of a rule's description."""
    return (type(rule).__doc__ or "").strip().partition("\n")[0]


async def _replay(service: Service, request: Request) -> Response:
    body, _ = read_body(await request.body(), ReplayBody)
    run = service.find_run(body.run)
    try:
        return Json(await run_in_threadpool(replay_run, service.engine, run))
    except ForetellError as error:
        raise problem_of(error) from None


def replay_run(engine: Engine, run: Run) -> dict[str, Any]:
    """Return what every stopping rule would have done with a stored run, without the model."""
    trace, request = run.completion.trace, run.request
    assert trace is not None, "only runs with traces are kept"
    clock: Literal["steps", "tokens"] = "tokens" if request.recipe.transfer.parallel else "steps"
    states = trace.states()
    judged = {kind: ask_stop(Prophet(reduce=kind, clock=clock), trace, states) for kind in ("min", "mean")}
    answers = [engine.answer(tokens, request) for tokens in trace.tokens.tolist()]
    has_answer = any(answer is not None for answer in answers)

    def replay(name: str, rule: Stop) -> dict[str, Any]:
        step = trace.replay(use_token_clock(rule) if clock == "tokens" else rule)
        answer = answers[-1 if step is None else step]
        saved = 0 if step is None else len(trace) - step - 1
        return {"name": name, "rule": format_value(rule), "step": step, "answer": answer} | {
            "same": answer == answers[-1],
            "saved": saved,
        }

    progress = judged["min"].progress
    return {
        "steps": len(trace),
        "final": answers[-1],
        "answers": answers,
        "last_change": trace.last_change() if has_answer else None,
        **{f"{kind}_gap": _list(verdict.value) for kind, verdict in judged.items()},
        "progress": _list(progress),
        "rules": [replay(name, rule) for name, rule in find_rules().items() if rule != Never()],
    }


def _list(values: Tensor | None) -> list[float]:
    """Return numbers with few digits. Those that are not finite are written as null."""
    return [] if values is None else [round(one, 4) for one in values.tolist()]

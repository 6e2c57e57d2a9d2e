"""The ASGI app: OpenAI's routes, health, metrics, and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from foretell.certify.supervise import Supervisor
from foretell.engine.engine import Engine
from foretell.errors import ForetellError
from foretell.serve.bodies import DetokenizeBody, TokenizeBody, read_body
from foretell.serve.guard import Access, Guard
from foretell.serve.metrics import Metrics
from foretell.serve.offers import Offers
from foretell.serve.page import page_routes
from foretell.serve.problems import Problem, problem_of
from foretell.serve.reply import Json
from foretell.serve.respond import PREPARE, answer_request
from foretell.serve.service import Limits, Service
from foretell.serve.worker import Worker

GRACE = 30.0  # seconds that running requests get when the server stops


def app(
    engine: Engine,
    *,
    recipes: tuple[str, ...] = (),
    limits: Limits | None = None,
    access: Access | None = None,
    supervisor: Supervisor | None = None,
    report: Callable[[Supervisor, Any], None] | None = None,
    grace: float = GRACE,
) -> Starlette:
    """Return a server for an engine, as an ASGI app. Its worker runs while the app's lifespan does.

    `recipes` are texts or files of certificates; clients may name them, and the first is the default. `supervisor`
    audits requests that name no recipe, and `report` is called with what its audits change.
    """
    limits, access = limits or Limits(), access or Access()
    offers = Offers.of(recipes, engine)
    worker = Worker(
        engine,
        max_batch=limits.max_batch,
        max_waiting=limits.max_waiting,
        max_groups=limits.max_groups,
        supervisor=supervisor,
        report=report,
    )
    metrics = Metrics(worker, supervisor)
    service = Service(engine, offers, limits, worker, metrics, supervisor, needs_key=access.key is not None)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        worker.start()
        try:
            yield
        finally:
            service.draining = True
            await run_in_threadpool(worker.stop, grace)

    made = Starlette(
        routes=[*_api_routes(service), *page_routes(service)],
        middleware=[Middleware(Guard, service=service, access=access)],
        exception_handlers={HTTPException: _explain_route},
        lifespan=lifespan,
    )
    made.state.service = service
    return made


def _api_routes(service: Service) -> list[BaseRoute]:
    return [
        *(Route(route, partial(answer_request, service, route), methods=["POST"]) for route in PREPARE),
        Route("/v1/models", partial(_models, service)),
        Route("/v1/models/{name:path}", partial(_model, service)),
        Route("/tokenize", partial(_tokenize, service), methods=["POST"]),
        Route("/detokenize", partial(_detokenize, service), methods=["POST"]),
        Route("/health", partial(_health, service)),
        Route("/ready", partial(_ready, service)),
        Route("/metrics", partial(_metrics, service)),
    ]


def _describe_model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model,
        "object": "model",
        "created": service.created,
        "owned_by": "foretell",
        "max_model_len": service.engine.context,
    }


async def _models(service: Service, _: Request) -> Response:
    return Json({"object": "list", "data": [_describe_model(service)]})


async def _model(service: Service, request: Request) -> Response:
    service.check_model(request.path_params["name"])
    return Json(_describe_model(service))


async def _tokenize(service: Service, request: Request) -> Response:
    body, _ = read_body(await request.body(), TokenizeBody)
    service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise Problem(400, "give either prompt or messages", param="prompt", code="invalid_value")
    codec = service.engine.codec
    try:
        if body.prompt is not None:
            ids = codec.encode(body.prompt, special=True)
        else:
            ids = await run_in_threadpool(codec.chat, body.messages or [])
    except ForetellError as error:
        raise problem_of(error, "prompt" if body.messages is None else "messages") from None
    return Json({"tokens": ids, "count": len(ids), "max_model_len": service.engine.context})


async def _detokenize(service: Service, request: Request) -> Response:
    body, _ = read_body(await request.body(), DetokenizeBody)
    service.check_model(body.model)
    largest = max(body.tokens, default=0)
    if largest >= service.engine.codec.vocab_size:
        last = service.engine.codec.vocab_size - 1
        raise Problem(400, f"tokens must be from 0 to {last}, got {largest}", param="tokens", code="invalid_value")
    return Json({"prompt": service.engine.codec.decode(body.tokens, skip_special=False)})


async def _health(service: Service, _: Request) -> Response:
    if not service.worker.alive:
        raise Problem(503, "the thread that decodes has ended", code="worker_ended")
    return Json({"status": "ok"})


async def _ready(service: Service, _: Request) -> Response:
    if service.draining or not service.worker.alive:
        raise Problem(503, "the server is starting or shutting down", code="not_ready")
    return Json({"status": "ready", "model": service.model})


async def _metrics(service: Service, _: Request) -> Response:
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _explain_route(_: Request, error: Exception) -> Response:
    """Return Starlette's own errors, an unknown route or a wrong method, in OpenAI's shape."""
    assert isinstance(error, HTTPException), "it is registered for these"
    status = error.status_code if error.status_code in (404, 405) else 400
    words = {404: "there is no such route", 405: "this route has another method"}
    problem = Problem(status, words.get(status, error.detail), code={404: "unknown_route", 405: "method"}.get(status))
    return Json(problem.body(), status, headers=error.headers)

"""Checks that every request passes before its route: host, origin, key and size. It also writes one log line each."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from asyncio import CancelledError
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretell.serve.problems import BUG, Problem, stopping
from foretell.serve.service import Limits

LOG = logging.getLogger("foretell.serve")
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
LONGEST_PATH = 200  # characters in a log line
SIZE = re.compile(r"[0-9]{1,18}")
WITHOUT_KEY = ("/", "/health", "/ready", "/metrics", "/foretell/info")  # and the page's files


@dataclass(frozen=True, slots=True)
class Access:
    """The hosts, pages and key that may use a server."""

    key: str | None = None
    hosts: Collection[str] = ()  # names in the Host header; empty: any
    origins: Collection[str] = ()  # pages of other hosts that may call it, or "*"


class Guarded(Protocol):
    """The parts of a server that the guard needs."""

    draining: bool

    @property
    def limits(self) -> Limits: ...


class Guard:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, service: Guarded, access: Access) -> None:
        self.app, self.service, self.access = app, service, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = name
        exchange = _Exchange(name, self._allowed_origin(headers))

        async def tell(message: Message) -> None:
            exchange.note(message)
            await send(message)

        try:
            if scope["method"] == "OPTIONS" and exchange.origin:
                await _allow(scope, receive, tell)
                return
            try:
                self._check(scope, headers, exchange)
                await self.app(scope, self._limit(receive), tell)
            except Problem as problem:
                await _report(problem, scope, receive, tell, exchange)
            except ClientDisconnect:
                pass  # nobody is left to be answered
            except CancelledError:  # the server stops, and its grace is over
                await _report(stopping(), scope, receive, tell, exchange)
            except Exception:
                LOG.exception("%s: a bug", name)
                await _report(BUG, scope, receive, tell, exchange)
        finally:
            exchange.log(scope)

    def _check(self, scope: Scope, headers: Headers, exchange: _Exchange) -> None:
        """Raise Problem if the request is refused before its route sees it."""
        host = _hostname(headers.get("host", ""))
        if self.access.hosts and host not in self.access.hosts:
            raise Problem(403, f"the host {host!r:.80} is not served here (allow it with --allowed-host)", code="host")
        if exchange.origin is None:
            raise Problem(
                403, "pages of other sites may not call this server (allow one with --cors-origin)", code="origin"
            )
        path = scope["path"]
        if self.access.key is not None and path not in WITHOUT_KEY and not path.startswith("/static/"):
            kind, _, key = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self.access.key.encode()):
                raise Problem(
                    401, "the API key is missing or wrong: send Authorization: Bearer KEY", code="invalid_api_key"
                )
        size = headers.get("content-length", "")
        if SIZE.fullmatch(size) and int(size) > self.service.limits.max_body:
            raise self._too_large()
        if self.service.draining and scope["method"] == "POST":
            raise stopping()

    def _too_large(self) -> Problem:
        limit = self.service.limits.max_body
        return Problem(413, f"the body has more than {limit:,} bytes, the limit of this server", code="body_too_large")

    def _limit(self, receive: Receive) -> Receive:
        """Count the bytes of a body whose length was not announced."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.service.limits.max_body:
                raise self._too_large()
            return message

        return counted

    def _allowed_origin(self, headers: Headers) -> str | None:
        """Return the origin to allow by name, "" if the header is not needed, or None if the origin is refused."""
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2] == headers.get("host"):
            return ""
        return origin if "*" in self.access.origins or origin in self.access.origins else None


class _Exchange:
    """One request and its response, for the log."""

    def __init__(self, name: str, origin: str | None) -> None:
        self.name, self.origin, self.status, self.began = name, origin, 0, time.perf_counter()

    def note(self, message: Message) -> None:
        """Add headers to the response, and keep its status."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.name
            if self.origin:
                headers["access-control-allow-origin"] = self.origin
                headers["access-control-expose-headers"] = "x-request-id"
                headers.add_vary_header("origin")

    def log(self, scope: Scope) -> None:
        work = scope["state"].get("work", "")
        seconds = time.perf_counter() - self.began
        path = quote(scope["path"], errors="replace")[:LONGEST_PATH]  # a line break would forge a log line
        LOG.info("%s %s %s %s %.3f s%s", self.name, scope["method"], path, self.status or "left", seconds, work)


async def _allow(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a browser that asks whether a page may call the server."""
    allowed = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type, x-request-id",
        "access-control-max-age": "600",
    }
    await JSONResponse({}, headers=allowed)(scope, receive, send)


async def _report(problem: Problem, scope: Scope, receive: Receive, send: Send, exchange: _Exchange) -> None:
    if exchange.status:  # the response has begun, so its status cannot change any more
        return
    await JSONResponse(problem.body(), problem.status, problem.headers)(scope, receive, send)


def _hostname(host: str) -> str:
    """Return the name in a Host header in lower case, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""

"""Requests that were once answered with a 500, or that a log should not repeat."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from foretell.errors import RequestError
from foretell.serve import Access, Limits, app
from tests.fuzz import world
from tests.fuzz.http_client import Reply, call, check_reply, check_socket

HOST = (b"host", b"localhost:8000")


def ask(
    path: str, body: bytes, *headers: tuple[bytes, bytes], leaves: bool = False, method: str = "POST"
) -> Reply | None:
    """Send one request to a server with the smallest model."""

    async def run() -> Reply | None:
        made = app(world.engine(), recipes=("full",), access=Access())
        async with made.router.lifespan_context(made):
            messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": leaves}]
            return await call(made, method, path, headers, [*messages, *([{"type": "http.disconnect"}] * leaves)])

    return asyncio.run(run())


def test_a_body_without_utf8_is_no_json() -> None:
    reply = ask("/detokenize", b'{"tokens": "\xed\xbf\xbf"}', HOST)
    assert reply is not None
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("origin", [b"http://[", b"http://localhost:8000]", b"null", b"\xff"])
def test_an_origin_that_is_no_address_is_refused(origin: bytes) -> None:
    reply = ask("/tokenize", b'{"prompt": "a"}', HOST, (b"origin", origin))
    assert reply is not None
    assert reply.status == 403
    assert json.loads(reply.body)["error"]["code"] == "origin"


def test_the_own_page_is_no_foreign_origin() -> None:
    reply = ask("/tokenize", b'{"prompt": "a"}', HOST, (b"origin", b"https://localhost:8000"))
    assert reply is not None
    assert reply.status == 200


@pytest.mark.parametrize("size", [b"\xb2", b"1" * 5000, b"", b"-1", b"1_0"])
def test_an_odd_length_is_ignored_and_the_bytes_are_counted(size: bytes) -> None:
    reply = ask("/tokenize", b'{"prompt": "a"}', HOST, (b"content-length", size))
    assert reply is not None
    assert reply.status == 200


def test_the_parts_of_a_body_are_counted_together() -> None:
    async def run() -> Reply | None:
        made = app(world.engine(), recipes=("full",), limits=Limits(max_body=100))
        parts = [{"type": "http.request", "body": b" " * 60, "more_body": more} for more in (True, False)]
        async with made.router.lifespan_context(made):
            return await call(made, "POST", "/tokenize", (HOST,), parts)

    reply = asyncio.run(run())
    assert reply is not None
    assert reply.status == 413


def test_a_client_that_leaves_while_it_sends_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "foretell.serve"):
        assert ask("/tokenize", b'{"prompt"', HOST, leaves=True) is None
    (line,) = [one.getMessage() for one in caplog.records]
    assert " left " in line


def test_a_path_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "foretell.serve"):
        ask("/a\nreq-1 POST /v1/completions 200", b"", HOST, method="GET")
    (line,) = [one.getMessage() for one in caplog.records]
    assert "\n" not in line
    assert "/a%0Areq-1" in line


def test_a_long_path_is_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "foretell.serve"):
        ask(f"/{'a' * 5000}", b"", HOST, method="GET")
    (line,) = [one.getMessage() for one in caplog.records]
    assert len(line) < 300


def test_a_part_whose_type_is_no_text_is_refused() -> None:
    asked = {"input": [{"role": "user", "content": [{"type": []}]}], "questions": [{"type": "predicate"}]}
    reply = ask("/v1/decisions", json.dumps({"model": "bytes", **asked}).encode(), HOST)
    assert reply is not None
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["param"] == "input"


def test_a_range_is_ignored() -> None:
    reply = ask("/", b"", HOST, (b"range", b"</s>"), method="GET")
    assert reply is not None
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(500, {"x-request-id": "a"}, b'{"error": {}}'),
        Reply(400, {"x-request-id": "a"}, b'{"detail": "no"}'),
        Reply(200, {"x-request-id": "a", "content-type": "text/event-stream"}, b"data: [DONE]\n\n"),
        Reply(200, {"x-request-id": "a\n"}, b"{}"),
    ],
)
def test_the_fuzzer_notices_wrong_answers(reply: Reply) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_reply(reply)


def test_the_fuzzer_notices_wrong_bytes() -> None:
    with pytest.raises(AssertionError):
        check_socket(b"HTTP/1.1 500 Internal Server Error\r\n\r\n")
    with pytest.raises(RequestError):
        check_socket(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    check_socket(b"HTTP/1.1 200 OK\r\n\r\n")

"""Requests to the server: odd bodies, headers, paths and encodings, into the app, and some through a socket."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from random import Random
from typing import Any

from starlette.applications import Starlette

from foretell.serve import Access, Limits, app
from tests.fuzz import world
from tests.fuzz.http_client import call, check_log, check_reply, check_socket, listen
from tests.fuzz.mutate import mutate_bytes, mutate_value, odd_text, odd_value, write_json
from tests.fuzz.prompts import CHAT

KEY = "secret"
LIMITS = Limits(max_batch=4, max_tokens=24, max_choices=4, max_body=1 << 17, timeout=300.0)
RECIPES = ("full", "threshold", "prophet stop.reduce=min")
LONGEST = 9000  # bytes of a header; servers refuse longer ones
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
DECISIONS, SYSTEM_ONE = "/v1/decisions", "/v1/systemone"
FIELDS: dict[str, Any] = {
    "a": {"type": "boolean"},
    "b": {"enum": ["x", "y"]},
    "c": {"type": "integer", "minimum": 0, "maximum": 9},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": ["a", "b", "c"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
SHARED: dict[str, tuple[Any, ...]] = {
    "max_tokens": (1, 5, 40, None), "temperature": (0, 0.7), "top_p": (1, 0.9), "top_k": (0, 3), "seed": (1, 2**31),
    "n": (1, 2), "stop": ("a", ["a", "é"]), "stream": (True, False), "stream_options": ({"include_usage": True}, None),
    "recipe": ("full", "threshold transfer.value=0.5"), "layout": ("short", "answer"), "answer_suffix": ("is",),
    "answer_length": (1, 2), "steps": (3,), "block_length": (2,), "stop_rule": ("sure", "prophet"),
    "drafts": (True, "positions"), "diffusing": (True,), "trace": (True,), "user": ("me",), "suffix": ("is",),
    "response_format": ({"type": "text"}, {"type": "json_object"}, FORMAT), "logit_bias": ({}, {"5": 1}),
    "echo": (False, True),
}  # fmt: skip
GETS = ("/health", "/ready", "/metrics", "/v1/models", "/v1/models/bytes", "/v1/models/a/b", "/foretell/info")
POSTS = (CHAT_PATH, TEXT_PATH, DECISIONS, SYSTEM_ONE, "/tokenize", "/detokenize", "/foretell/replay")
ASKED: list[Any] = [
    {"type": "predicate", "instructions": "Is it?"},
    {
        "type": "choice",
        "name": "c",
        "instructions": "Which?",
        "choices": [{"value": "a", "description": "x"}, {"value": True}],
    },
    {
        "type": "score",
        "instructions": [{"type": "input_text", "text": "How?"}],
        "levels": [{"label": "0"}, {"label": "1"}],
    },
]
CRITERIA: dict[str, Any] = {
    "p": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "it is", "false": None}},
    "c": {"type": "choice", "criteria": {"a": "x", "b": None}},
    "s": {"type": "score", "instructions": {"a": 1}, "criteria": ["low", "high"]},
}
NAMES = (
    *("host", "origin", "authorization", "content-length", "content-type", "content-encoding", "transfer-encoding"),
    *("x-request-id", "expect", "accept", "cookie", "range", "if-none-match", "x-forwarded-host", "upgrade", "te"),
)
VALUES = (
    b"", b" ", b"localhost", b"[::1", b"http://[", b"http://]", b"//", b"null", b"*", b"Bearer", b"Bearer secret",
    b"bearer  secret ", b"Basic c2VjcmV0", b"0", b"-1", b"7", b"99999999999", b"1" * 5000, b"\xb2", b"\xbd", b"1_0",
    b"gzip", b"chunked", b"br, gzip", b"identity", b"text/plain; charset=utf-16", b"multipart/form-data",
    b"100-continue", b"\xff\xfe", b"caf\xe9", b"\xc3\xa9", b"a\x0bb", b"h2c", b"localhost:99999", b"localhost:x",
    b"a" * LONGEST,
)  # fmt: skip
SAFE = frozenset(range(0x21, 0x7F)) | frozenset(range(0x80, 0x100)) | {0x20, 0x09}  # what a header can hold


def _body(rng: Random, path: str, model: str) -> Any:
    """Return a valid body of a route, or one that is close to that."""
    if path == "/tokenize":
        return rng.choice(({"prompt": "one"}, {"messages": CHAT[:2]}, {"model": model, "prompt": "<|eot_id|>"}))
    if path == "/detokenize":
        return {"tokens": [rng.randrange(300) for _ in range(rng.randrange(5))]}
    if path == "/foretell/replay":
        return {"run": rng.choice(("chatcmpl-1", "a"))}
    if path in (DECISIONS, SYSTEM_ONE):
        return _decision(rng, model)
    chosen = rng.sample(sorted(SHARED), rng.choice((0, 0, 1, 2, 4)))
    given = {name: rng.choice(SHARED[name]) for name in chosen}
    if path == CHAT_PATH:
        messages = CHAT[: rng.randrange(1, 4)]
        own = {"messages": messages, "logprobs": rng.random() < 0.3, "top_logprobs": rng.choice((0, 2))}
        return {"model": model, **own, **given}
    prompts = ("one two", ["one", "two"], [1, 2, 3], [[1], [2, 3]], "a\0b", "")
    return {"model": model, "prompt": rng.choice(prompts), "logprobs": rng.choice((None, 1)), **given}


def _decision(rng: Random, model: str) -> Any:
    """Return a body that asks for a decision, in one of the two dialects."""
    others = {"think": (0, 4), "steps": (1, 3), "orders": (1, 2), "on_unsure": ("abstain", "full"), "sure": (0.5,)}
    others |= {"recipe": ("full",), "stream": (True,), "seed": (1,), "template": ("choice",)}
    given = {name: rng.choice(others[name]) for name in rng.sample(sorted(others), rng.randrange(3))}
    if rng.random() < 0.5:
        names = rng.sample(sorted(CRITERIA), rng.randrange(1, 4))
        return {
            "model": model,
            "state": rng.choice(("hi", {"a": [1]})),
            "questions": {one: CRITERIA[one] for one in names},
        } | given
    said = rng.choice(("hi", [{"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]}]))
    return {"model": model, "input": said, "questions": rng.sample(ASKED, rng.randrange(1, 4))} | given


def _encode(rng: Random, value: Any) -> bytes:
    """Return a body as bytes, sometimes damaged and sometimes in another encoding."""
    kind = rng.random()
    if kind < 0.2:
        return write_json(rng, value)
    if kind < 0.65:
        return write_json(rng, mutate_value(rng, value))
    if kind < 0.8:
        return mutate_bytes(rng, write_json(rng, value))
    if kind < 0.85:
        return write_json(rng, odd_value(rng))
    plain = write_json(rng, value)
    text = plain.decode(errors="replace")
    encodings = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp037")
    others = (gzip.compress(plain), zlib.compress(plain), b"", b"\0" * 9, b"a=1&b=2", plain * 2, b" " * LIMITS.max_body)
    named = text.encode(rng.choice(encodings), "replace")
    twice = text.replace("{", '{"model": "x", "model": 1, ', 1).encode()
    return rng.choice((named, twice, *others))


def _headers(rng: Random, key: str | None) -> list[tuple[bytes, bytes]]:
    """Return headers of a client, some of them odd, doubled or missing."""
    made = [(b"host", b"localhost:8000"), (b"content-type", b"application/json")]
    if key is not None:
        made.append((b"authorization", f"Bearer {key}".encode()))
    for _ in range(rng.choice((0, 0, 1, 2, 5))):
        odd = bytes(byte for byte in odd_text(rng).encode("utf8", "surrogatepass")[:LONGEST] if byte in SAFE)
        name = rng.choice(NAMES).encode() if rng.random() < 0.9 else b"x-" + bytes(rng.choices(b"abc-_!~", k=4))
        made.append((name, rng.choice((odd, *VALUES)).strip()))
    if rng.random() < 0.1:
        del made[rng.randrange(len(made))]
    rng.shuffle(made)
    return made


def _target(rng: Random) -> tuple[str, str]:
    """Return a method and a path."""
    kind = rng.random()
    if kind < 0.85:
        return "POST", rng.choices(POSTS, (6, 6, 3, 3, 1, 1, 1))[0]
    if kind < 0.93:
        return rng.choice(("GET", "HEAD")), rng.choice(GETS)
    path = rng.choice((*GETS, *POSTS, "/", "//", "/../..", "/static/../app.py", "/v1/models/../x", f"/{odd_text(rng)}"))
    method = rng.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "HEAD", "A", "get"))
    return method, path.encode(errors="replace").decode()


def _pieces(rng: Random, body: bytes, *, leaves: bool) -> list[dict[str, Any]]:
    """Return a body as the messages of an ASGI server; the client may leave before or after its end."""
    cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice((0, 0, 1, 4))))
    parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    if leaves:
        messages = [*messages[: rng.randrange(len(messages) + 1)], {"type": "http.disconnect"}]
    return messages


async def _run_app(rng: Random, made: Starlette, model: str, key: str | None) -> None:
    method, path = _target(rng)
    body = _encode(rng, _body(rng, path, model)) if method == "POST" or rng.random() < 0.3 else b""
    messages = _pieces(rng, body, leaves=rng.random() < 0.05)
    reply = await call(made, method, path, _headers(rng, key), messages)
    if reply is not None:
        check_reply(reply, method)


async def _run_socket(rng: Random, made: Starlette, model: str, key: str | None) -> None:
    """Send raw bytes, some of which are no HTTP at all, and close the connection behind them."""
    method, path = _target(rng)
    body = _encode(rng, _body(rng, path, model))
    headers = [*_headers(rng, key), (b"content-length", str(len(body)).encode())]
    target = "".join(letter if letter.isascii() and letter > " " else f"%{ord(letter) & 255:02x}" for letter in path)
    head = f"{method} {target} HTTP/1.1\r\n".encode() + b"".join(b"%b: %b\r\n" % one for one in headers) + b"\r\n"
    raw = mutate_bytes(rng, head) + body if rng.random() < 0.4 else head + body
    async with listen(made) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = b""
        try:
            writer.write(raw)
            writer.write_eof()
            answer = await reader.read()
        except ConnectionError:
            pass  # it stopped reading, as it may
        finally:
            writer.close()
        check_socket(answer)
        await _check_alive_by_socket(port, model)


async def _check_alive_by_socket(port: int, model: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert b'{"status":"ok"}' in await reader.read()
    writer.close()


async def _check_alive(made: Starlette, model: str, key: str | None) -> None:
    """Assert that the server still answers as the engine does, and that nothing is left in its worker."""
    service = made.state.service
    headers = [(b"host", b"localhost"), *([] if key is None else [(b"authorization", f"Bearer {key}".encode())])]
    body = json.dumps({"model": model, "prompt": [1, 2], "recipe": "full", "layout": "short", "max_tokens": 6}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    reply = await call(made, "POST", TEXT_PATH, headers, messages)
    assert reply is not None
    assert reply.status == 200, reply.body
    assert json.loads(reply.body)["choices"][0]["text"] == world.expected_text()
    while service.worker.load:
        await asyncio.sleep(0.001)


async def _run(rng: Random) -> None:
    engine = world.engine()
    key = rng.choice((None, None, KEY))
    hosts = rng.choice(((), ("localhost", "127.0.0.1")))
    access = Access(key, hosts, rng.choice(((), ("*",), ("http://localhost:3000",))))
    made = app(engine, recipes=RECIPES, limits=LIMITS, access=access, grace=5.0)
    async with made.router.lifespan_context(made):
        try:
            await (_run_socket if rng.random() < 0.05 else _run_app)(rng, made, engine.name, rng.choice((key, KEY)))
        finally:
            await _check_alive(made, engine.name, key)


def run(rng: Random) -> None:
    with check_log():
        asyncio.run(_run(rng))

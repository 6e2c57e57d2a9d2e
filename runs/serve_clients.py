"""The load of runs/serve_load.py: many clients at the same time; some stream, and some leave early."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from foretell.errors import RequestError

START = 120.0  # seconds that a server may take to start
TIMEOUT = 900.0  # seconds that a request may take
RETRY = 0.5  # seconds after which a client tries again
IDLE = 60.0  # seconds within which a server must have dropped what clients left behind


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a client."""

    prompt: str
    layout: str
    recipe: str
    stream: bool = False
    drafts: bool = False
    leaves: float | None = None  # seconds after which the client hangs up

    @property
    def body(self) -> dict[str, Any]:
        own = {"stream": True, "drafts": True} if self.drafts else {"stream": True} if self.stream else {}
        messages = [{"role": "user", "content": self.prompt}]
        return {"model": "tiny", "messages": messages, "layout": self.layout, "recipe": self.recipe, **own}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got."""

    text: str | None  # None if the client left
    seconds: float
    first: float | None = None  # seconds until the first text of a stream
    refusals: int = 0  # how often the server was too busy; the client then tries again


@dataclass(frozen=True, slots=True)
class Load:
    """All answers in the order of the requests, and the time from the first request to the last answer."""

    answers: list[Answer]
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.answers) / self.seconds

    def latency(self, share: float) -> float:
        """Return the latency that this share of the requests does not exceed."""
        ordered = sorted(one.seconds for one in self.answers)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process of its own."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def memory(self) -> int:
        """Resident memory in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="utf8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def metrics(self) -> dict[str, float]:
        """Return Foretell's metrics by name, with their labels."""
        text = httpx2.get(f"{self.url}/metrics").text
        return {name: float(value) for name, value in re.findall(r"^(foretell_\S+) (\S+)$", text, re.MULTILINE)}

    @property
    def load(self) -> int:
        found = self.metrics()
        return int(found["foretell_requests_waiting"] + found["foretell_rows_running"])

    def wait_until_idle(self) -> float:
        """Wait until nothing is decoded any more, and return the seconds that it took. Raises RequestError if it is."""
        start = time.perf_counter()
        while (left := self.load) and time.perf_counter() - start < IDLE:
            time.sleep(0.05)
        if left:
            raise RequestError(f"{left} requests are still in the server {IDLE:g} s after all clients have left")
        return time.perf_counter() - start


@contextmanager
def start_server(*command: str) -> Iterator[Server]:
    """Run `python COMMAND`, which prints its address on stderr, until the block ends."""
    with tempfile.NamedTemporaryFile("r", suffix=".log") as log, Path(log.name).open("w", encoding="utf8") as written:
        process = subprocess.Popen([sys.executable, *command], stdout=written, stderr=written)
        try:
            yield Server(_read_address(process, Path(log.name)), process)
        finally:
            process.terminate()
            process.wait(START)


def _read_address(process: subprocess.Popen[bytes], log: Path) -> str:
    start = time.monotonic()
    while process.poll() is None and time.monotonic() - start < START:
        if found := re.search(r"at (http://\S+)", log.read_text(encoding="utf8")):
            return found[1].replace("localhost", "127.0.0.1")
        time.sleep(0.05)
    raise RequestError(f"the server did not start: {log.read_text(encoding='utf8')}")


def run_load(url: str, asks: Sequence[Ask], clients: int) -> Load:
    """Send all requests, with this many clients at the same time; each sends its next one when it has an answer."""
    return asyncio.run(_run_load(url, asks, clients))


async def _run_load(url: str, asks: Sequence[Ask], clients: int) -> Load:
    left, answers = iter(enumerate(asks)), dict[int, Answer]()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=TIMEOUT) as http:

        async def work() -> None:
            for place, one in left:
                answers[place] = await _ask(http, one)

        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(work())
        seconds = time.perf_counter() - start
    return Load([answers[place] for place in range(len(asks))], seconds)


class _BusyError(Exception):
    """The server asks to be tried again later."""


async def _ask(http: httpx2.AsyncClient, one: Ask) -> Answer:
    """Send a request, again and again while the server is too busy, until it is answered or the client leaves."""
    start, refusals = time.perf_counter(), 0
    try:
        async with asyncio.timeout(one.leaves):
            while True:
                try:
                    text, first = await (_stream(http, one) if one.stream else _wait(http, one))
                except _BusyError:
                    refusals += 1
                    await asyncio.sleep(RETRY)
                else:
                    return Answer(text, time.perf_counter() - start, first and first - start, refusals)
    except TimeoutError:
        return Answer(None, time.perf_counter() - start, refusals=refusals)


async def _check(reply: httpx2.Response) -> None:
    if reply.status_code == httpx2.codes.TOO_MANY_REQUESTS:
        raise _BusyError
    if reply.status_code != httpx2.codes.OK:
        await reply.aread()
        raise RequestError(f"{reply.status_code}: {reply.text}")


async def _wait(http: httpx2.AsyncClient, one: Ask) -> tuple[str, None]:
    reply = await http.post("/v1/chat/completions", json=one.body)
    await _check(reply)
    return str(reply.json()["choices"][0]["message"]["content"]), None


async def _stream(http: httpx2.AsyncClient, one: Ask) -> tuple[str, float | None]:
    text, first, ended = "", None, False
    async with http.stream("POST", "/v1/chat/completions", json=one.body) as reply:
        await _check(reply)
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                ended = ended or line == "data: [DONE]"
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RequestError(str(chunk["error"]["message"]))
            delta = chunk["choices"][0]["delta"].get("content", "")
            first = first or (time.perf_counter() if delta else None)
            text += delta
    if not ended:
        raise RequestError("a stream ended without [DONE]")
    return text, first


def mix(prompts: Sequence[tuple[str, str]], recipes: Sequence[str], count: int, leaving: float, seed: int) -> list[Ask]:
    """Return requests with random recipes, half of them streams; a share of the clients leaves early."""
    rng, asks = Random(seed), list[Ask]()
    for _ in range(count):
        prompt, layout = rng.choice(prompts)
        stream = rng.random() < 0.5
        leaves = rng.choice((0.0, 0.05, 0.5, 2.0)) if rng.random() < leaving else None
        asks.append(Ask(prompt, layout, rng.choice(recipes), stream, stream and rng.random() < 0.3, leaves))
    return asks

"""Track what a client has received of a response: it decides whether another replica may answer the request."""

from __future__ import annotations

import msgspec
from starlette.types import Send

from foretell.scale.exchange import Start
from foretell.serve.problems import Problem

LAST = b"data: [DONE]\n\n"


class Delivery:
    """Passes the parts of a response on to the client.

    A response that is sent at once is held until it is there. Of a stream, the status and comments are sent
    immediately, and events that only open a choice are held until the first one with a content.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Start | None = None  # of the replica that answers now
        self._held: list[bytes] = []
        self.status = 0  # that the client has received
        self.committed = False  # whether the client has received a part of the answer
        self.whole = False  # whether it has received everything, and may leave

    def restart(self) -> None:
        """Forget what is held, because another replica answers."""
        self._start = None
        self._held.clear()

    async def start(self, start: Start) -> None:
        self._start = start
        if start.streams and not self.status:
            await self._send_start()

    async def body(self, part: bytes) -> None:
        assert self._start is not None, "an app sends its status first"
        if self.status and not self._start.streams:  # the first replica began a stream, this one refuses the request
            part = b"data: " + part + b"\n\n"
        if self._start.streams and part.startswith(b":"):
            await self._send_body(part)
        elif self._start.streams and not self.committed and is_opening(part):
            self._held.append(part)
        else:
            await self._commit(part)

    async def end(self) -> None:
        """Send what is held, and the end of the response."""
        if not self.status or self._held:
            await self._commit(b"")
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, problem: Problem) -> None:
        """End a stream that has begun with an event that reports a problem."""
        await self._send_body(b"data: " + msgspec.json.encode(problem.body()) + b"\n\n")
        await self._send({"type": "http.response.body", "body": b""})

    async def _commit(self, part: bytes) -> None:
        streams = self._start is not None and self._start.streams
        if not self.status:
            await self._send_start()
        held, self._held = self._held, []
        for one in [*held, part]:
            if one:
                await self._send_body(one)
        self.committed = True
        self.whole = not streams or part == LAST

    async def _send_start(self) -> None:
        assert self._start is not None, "an app sends its status first"
        self.status = self._start.status
        headers = [*self._start.headers]
        await self._send({"type": "http.response.start", "status": self.status, "headers": headers})

    async def _send_body(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})


def is_opening(event: bytes) -> bool:
    """Return whether an event of a stream only opens a choice, without anything of the answer."""
    if not event.startswith(b"data: {"):
        return False
    body = msgspec.json.decode(event[len(b"data: ") :])
    if not body.get("choices") or "draft" in body or "error" in body:
        return False
    return all(
        one.get("finish_reason") is None and not one.get("text") and not one.get("delta", {}).get("content")
        for one in body["choices"]
    )

"""A server that decodes one request at a time, for runs/serve_load.py to compare with: what twenty lines give."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import foretell
from foretell.engine.engine import Completion, Engine


def naive(engine: Engine) -> Starlette:
    """Return an app that generates under a lock."""
    lock = threading.Lock()

    def generate(body: dict[str, Any]) -> str:
        with lock:
            done: Completion = engine.generate(body["messages"], recipe=body["recipe"], layout=body["layout"])
            return done.text

    async def complete(request: Request) -> JSONResponse:
        text = await run_in_threadpool(generate, await request.json())
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": text}}]})

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


async def serve(app: Starlette) -> None:
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning", access_log=False))
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(f"serving one at a time at http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    await serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--packed", action="store_true")
    options = parser.parse_args()
    engine = foretell.load(options.model, packed=options.packed)
    engine.use_threads()
    asyncio.run(serve(naive(engine)))


if __name__ == "__main__":
    main()

"""A server that decodes one request at a time, for runs/serve_load.py to compare with: what twenty lines give."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import foretell
from foretell.engine.engine import Engine


def naive(engine: Engine) -> Starlette:
    """Return an app that generates under a lock."""
    lock = threading.Lock()

    def generate(body: dict[str, str]) -> str:
        with lock:
            return engine.generate(body["prompt"], recipe=body["recipe"], layout=body["layout"]).text

    async def complete(request: Request) -> JSONResponse:
        text = await run_in_threadpool(generate, await request.json())
        return JSONResponse({"choices": [{"text": text, "finish_reason": "stop"}]})

    return Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])


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
    engine = foretell.load(parser.parse_args().model)
    engine.use_threads()
    asyncio.run(serve(naive(engine)))


if __name__ == "__main__":
    main()

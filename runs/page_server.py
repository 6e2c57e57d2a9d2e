"""A server of the page with the bundled model, run by a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import uvicorn

import foretell


@contextmanager
def serve_page(model: str = "tiny") -> Iterator[str]:
    """Serve a model on a free port while the block runs, and yield the page's address."""
    app = import_module("foretell.serve").app(foretell.load(model))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server ended before it was ready")
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(timeout=60)

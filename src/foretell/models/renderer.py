"""Runs `render` in a separate process, because no sandbox inside Python limits time and memory."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from foretell.helper import HelperProcess
from foretell.models import render

SECONDS = 10  # per template
MEMORY = 1 << 30  # bytes of the process's address space


def _make_command() -> list[str]:
    places = {str(Path(str(package.__file__)).parents[1]) for package in (jinja2, markupsafe)}
    return [sys.executable, "-I", str(render.__file__), str(MEMORY), str(SECONDS), *sorted(places)]


RENDERER = HelperProcess(_make_command)


def render_in_process(job: dict[str, Any]) -> dict[str, str]:
    """Return what `render.render_template` returns; it `failed` if the process ended or took too long."""
    began = time.monotonic()
    try:
        answer = RENDERER.ask(f"{json.dumps(job)}\n".encode(), SECONDS)
    except OSError as problem:
        return {"failed": f"no process can be started for it: {problem}"}
    if answer is None:
        expired = time.monotonic() - began >= SECONDS
        return {"failed": f"it takes more than {SECONDS} seconds" if expired else "its process was ended"}
    result: dict[str, str] = json.loads(answer)
    return result

"""Render a chat template in Jinja's sandbox. `renderer` runs this file as a separate process, with limits.

It imports nothing of foretell, so that the process starts in a moment.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, TextIO

if __name__ == "__main__":
    sys.path += sys.argv[3:]  # where jinja2 is, wherever that is

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST = 4_000_000  # characters of a rendered template


class _RefusedError(TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """Renders the body of {% generation %}, which marks the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_template(job: dict[str, Any]) -> dict[str, str]:
    """Return the `text` of a job (template, messages, names), or why it is `refused`, `invalid`, or has `failed`."""
    try:
        template = _compile_template(job["template"])
    except Exception as problem:  # noqa: BLE001  whatever the template makes Jinja and Python's compiler raise
        return {"invalid": _describe(problem)}
    pieces, length = [], 0
    try:
        for piece in template.generate(messages=job["messages"], add_generation_prompt=True, **job["names"]):
            pieces.append(piece)
            length += len(piece)
            if length > LONGEST:
                return {"failed": f"it writes more than {LONGEST:,} characters"}
    except _RefusedError as problem:
        return {"refused": _describe(problem)}
    except Exception as problem:  # noqa: BLE001  whatever the template does
        return {"failed": _describe(problem)}
    return {"text": "".join(pieces)}


def _describe(problem: Exception) -> str:
    if isinstance(problem, MemoryError):
        return "it needs too much memory"
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    return f"{problem!s:.300}"


@lru_cache(maxsize=16)
def _compile_template(text: str) -> Template:
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals = {
        "raise_exception": _refuse,
        "strftime_now": _format_now,
        "range": sandbox.globals["range"],  # the sandbox's own, which is bounded
        "namespace": sandbox.globals["namespace"],
        "dict": sandbox.globals["dict"],
    }
    return sandbox.from_string(text)


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _format_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Convert to JSON. Jinja's own filter escapes for HTML, which would change a prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def serve(jobs: TextIO, results: TextIO, seconds: int) -> None:
    """Answer one JSON line per job until `jobs` ends."""
    for line in jobs:
        _limit_time(seconds)
        results.write(json.dumps(render_template(json.loads(line))) + "\n")
        results.flush()


def _limit_memory(size: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, and macOS refuses some
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _limit_time(seconds: int) -> None:
    """Let the system end this process after more CPU time than a job may take, in case its parent does not."""
    with suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415

        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(
            resource.RLIMIT_CPU,
            (int(used.ru_utime + used.ru_stime) + 1 + seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]),
        )


if __name__ == "__main__":
    _limit_memory(int(sys.argv[1]))
    serve(sys.stdin, sys.stdout, int(sys.argv[2]))

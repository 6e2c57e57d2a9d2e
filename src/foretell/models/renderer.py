"""Runs `render` in a process of its own, because no sandbox inside Python limits time and memory."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import jinja2
import markupsafe

from foretell.models import render

SECONDS = 10  # per template
MEMORY = 1 << 30  # bytes of the process's address space


class Renderer:
    """One process, started at the first template and after each that went beyond a limit. Threads take turns."""

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Leave the process to the parent that started it; a thread of the parent may hold the lock."""
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: dict[str, Any]) -> dict[str, str]:
        """Return what `render.render_template` returns; it `failed` if the process ended or took too long."""
        line, answer, began = f"{json.dumps(job)}\n", "", time.monotonic()
        with self._lock:
            try:
                process = self._start()
            except OSError as problem:
                return {"failed": f"no process can be started for it: {problem}"}
            late = Timer(SECONDS, process.kill)
            late.start()
            try:
                answer = _exchange(process, line)
            finally:  # an interrupt leaves an answer in the pipe, which belongs to nobody
                late.cancel()
                if not answer:
                    self._stop()
        if not answer:
            expired = time.monotonic() - began >= SECONDS
            return {"failed": f"it takes more than {SECONDS} seconds" if expired else "its process was ended"}
        result: dict[str, str] = json.loads(answer)
        return result

    def _start(self) -> subprocess.Popen[str]:
        """Return the running process, or a new one."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        places = {str(Path(str(package.__file__)).parents[1]) for package in (jinja2, markupsafe)}
        command = [sys.executable, "-I", str(render.__file__), str(MEMORY), str(SECONDS), *sorted(places)]
        self._process = subprocess.Popen(  # noqa: S603  our own file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self._process

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes the pipes and waits
            self._process = None


def _exchange(process: subprocess.Popen[str], line: str) -> str:
    """Return the process's answer to a line; empty if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except OSError:
        return ""
    answer = process.stdout.readline()
    return answer if answer.endswith("\n") else ""


RENDERER = Renderer()

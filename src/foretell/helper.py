"""A helper process that answers each line with a line, for work that needs limits of time and memory."""

from __future__ import annotations

import atexit
import os
import subprocess
from collections.abc import Callable
from threading import Lock, Timer


class HelperProcess:
    """A process that starts with the first question, and again whenever a question has ended it.

    Threads take turns. A forked process leaves the helper to its parent and starts its own.
    """

    def __init__(self, make_command: Callable[[], list[str]]) -> None:
        self._make_command, self._lock = make_command, Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            # No process is forked during a question, so that its copy does not hold half of it.
            os.register_at_fork(
                before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._forget
            )

    def ask(self, question: bytes, seconds: float | None = None) -> bytes | None:
        """Return the answer to a line; None if the process ended, by itself or because it took more than `seconds`.

        Raises OSError if no process can be started.
        """
        answer = b""
        with self._lock:
            process = self._start()
            late = Timer(seconds, process.kill) if seconds is not None else None
            if late is not None:
                late.start()
            try:
                answer = _exchange(process, question)
            finally:
                if late is not None:
                    late.cancel()
                if not answer.endswith(b"\n"):  # it has ended, or an interrupt left an answer that nobody reads
                    self._stop()
        return answer if answer.endswith(b"\n") else None

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        """Return the running process, or a new one."""
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = subprocess.Popen(  # noqa: S603 - a fixed script in this interpreter
                self._make_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes the pipes and waits
            self._process = None

    def _forget(self) -> None:
        """Leave the process to the parent, of which this process is a fork."""
        if self._process is not None:
            self._process.returncode = 0  # it is not a child of this process, which cannot wait for it
            self._process = None
        self._lock.release()


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """Return the process's answer to a line; empty if it has ended."""
    assert process.stdin is not None, "it was opened as a pipe"
    assert process.stdout is not None, "it was opened as a pipe"
    try:
        process.stdin.write(question)
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return b""

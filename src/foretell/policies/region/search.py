"""Search texts with Python's `re` under a limit of CPU time, in a process that is started when it is first needed."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from threading import Lock

from foretell.errors import RecipeError, show
from foretell.policies.region import search_process
from foretell.policies.region.search_process import SECONDS


class Searcher:
    """Owns the process that searches; threads take turns. A process that was killed is replaced at the next search."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def find(self, regex: str, group: int | None, text: str) -> tuple[int, int] | None:
        """Return what `find_last` finds. Raises RecipeError if the search uses up its CPU time."""
        asked = json.dumps([regex, group, text]).encode() + b"\n"
        with self.lock:
            answer = self._ask(asked)
        if not answer.endswith(b"\n"):
            raise RecipeError(
                f"the region's pattern {show(regex)} was given up: the search of a text of {len(text)} characters took "
                f"more than {SECONDS:g} seconds of CPU time; write it without nested repetition such as (a+)+"
            )
        start_end = json.loads(answer)
        return start_end and tuple(start_end)

    def _ask(self, asked: bytes) -> bytes:
        """Return the answer of the process, which is empty if it died."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start()
        assert self._process.stdin is not None, "it was opened as a pipe"
        assert self._process.stdout is not None, "it was opened as a pipe"
        answer = b""
        try:
            self._process.stdin.write(asked)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        finally:
            if not answer:  # it died, or Ctrl-C left it with an answer that nobody reads
                self.close()
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def forget(self) -> None:
        """Leave the process to the parent, of which this process is a fork."""
        if self._process is not None:
            self._process.returncode = 0  # it is not a child of this process, which cannot wait for it
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    # -I and -S: neither the environment nor installed packages may change what is imported.
    command = [sys.executable, "-I", "-S", search_process.__file__]
    try:
        return subprocess.Popen(  # noqa: S603 - a fixed script in this interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise RecipeError(f"region=pattern searches in a process of its own, which cannot start: {error}") from error


SEARCHER = Searcher()
atexit.register(SEARCHER.close)


def _forget() -> None:
    SEARCHER.forget()
    SEARCHER.lock.release()


# No process is forked during a search, so that its copy does not hold half a question.
os.register_at_fork(before=SEARCHER.lock.acquire, after_in_parent=SEARCHER.lock.release, after_in_child=_forget)

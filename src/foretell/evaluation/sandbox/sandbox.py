"""Run code that a model wrote against its tests, in a process that can do little else.

Every candidate gets a process group, an empty environment, a temporary directory that is removed afterwards, and limits
on CPU time, wall-clock time, memory, file size, open files and processes. Its output is cut, and everything that it
started is killed when it ends. On Linux it also gets, each where the kernel grants it and none needing privileges:

* namespaces of its own for network and processes (`isolated`): no network at all, and nothing outlives the run;
* a read-only view of every file system but its directory, and Landlock (version 3, Linux 6.2) with the same effect
  (`contained`). Landlock alone leaves permission bits and times of the user's own files unprotected;
* if we are root, another user's rights; reading alone is kept where the interpreter lies out of that user's reach.

Not guaranteed: that a candidate cannot *read* what we can read, that its memory is bounded as a whole (the limit is for
each process, 16 of them), or that the kernel has no holes. Where neither namespaces nor Landlock exist, only the limits
hold: a verdict says so, and code of unknown intent belongs into a virtual machine. A pass needs a word that only the
end of the tests says, so leaving early is no pass; code that hunts for that word in memory could forge it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from foretell.errors import PermissionNeededError, RequestError, within

JAIL = Path(__file__).with_name("jail.py")
START = 60.0  # seconds that a busy machine may take to start an interpreter
LEAST = {"seconds": 0.1, "cpu_seconds": 1, "memory": 1 << 26, "file_bytes": 1, "processes": 1, "output": 0}
Status = Literal["passed", "failed", "timed out", "killed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one candidate may use."""

    seconds: float = 60.0  # of wall clock: generous, so that a busy machine does not change a verdict
    cpu_seconds: int = 10  # for each process
    memory: int = 1 << 30  # bytes of address space, for each process
    file_bytes: int = 8 << 20  # the largest file, the captured output among them
    processes: int = 16
    output: int = 2000  # characters of output that a verdict keeps

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            within(f"the limit on {name}", getattr(self, name), least, error=RequestError)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program and the tests that run behind it, in the same module."""

    code: str
    tests: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a candidate ended, and how well it was locked in."""

    status: Status
    reason: str  # one line; empty for a pass
    output: str  # the end of what it printed
    seconds: float
    isolated: bool  # it had no network and nothing can have outlived it
    contained: bool  # it could not write outside its directory

    @property
    def passed(self) -> bool:
        return self.status == "passed"


def run_tests(
    candidates: Sequence[Candidate], *, allow_execution: bool, jobs: int = 1, limits: Limits | None = None
) -> list[Verdict]:
    """The verdict on every candidate, in their order; `jobs` of them run at a time."""
    if not allow_execution:
        raise PermissionNeededError("allow_execution=True")
    if jobs < 1:
        raise RequestError(f"jobs must be at least 1, got {jobs}")
    bounds = limits or Limits()
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda candidate: _run(candidate, bounds), candidates))


def _run(candidate: Candidate, limits: Limits) -> Verdict:
    started = time.monotonic()
    reading, writing = os.pipe()
    nonce = secrets.token_hex(16)
    order = {
        "parts": [candidate.code, candidate.tests],
        "limits": asdict(limits),
        "nonce": nonce,
        "report": writing,
    }
    try:
        with (
            tempfile.TemporaryDirectory(prefix="foretell-", ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as output,
        ):
            given.write(json.dumps(order).encode())
            given.seek(0)
            try:
                jail = _start(folder, given.fileno(), output.fileno(), writing)
            finally:
                os.close(writing)
            code = _supervise(jail, reading, limits.seconds)
            os.set_blocking(reading, False)  # where nothing ends a stray process, it may hold the other end
            said = _lines(reading)
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * limits.output))
            printed = output.read().decode("utf-8", "replace")
    finally:
        os.close(reading)
    status, reason = _status(code, said, nonce, limits)
    locks = said[0] if said else {}
    return Verdict(
        status=status,
        reason=reason,
        output=printed[-limits.output :] if limits.output else "",
        seconds=time.monotonic() - started,
        isolated=locks.get("isolated") is True,
        contained=locks.get("mounts") is True or locks.get("landlock") is True,
    )


def _start(folder: str, given: int, output: int, report: int) -> subprocess.Popen[bytes]:
    # Candidates see nothing of our environment. The seed makes the order of sets, so a grade, repeatable.
    environment = {"HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    return subprocess.Popen(  # noqa: S603 - our own script in our own interpreter
        [sys.executable, "-s", "-P", "-B", str(JAIL)],
        cwd=folder,
        env=environment,
        stdin=given,
        stdout=output,
        stderr=output,
        pass_fds=(report,),
        start_new_session=True,
    )


def _supervise(jail: subprocess.Popen[bytes], reading: int, seconds: float) -> int | None:
    """The exit code of a jail, or None if its time ran out. Its whole group is gone afterwards."""
    try:
        locked_in = select.poll()  # the first report; only then the clock runs
        locked_in.register(reading, select.POLLIN)
        locked_in.poll(START * 1000)
        return jail.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(jail.pid, signal.SIGKILL)
        jail.wait()


def _lines(reading: int) -> list[dict[str, Any]]:
    """What the jail reported. A candidate can write there too, so nothing is taken for granted."""
    try:
        text = os.read(reading, 1 << 16).decode("utf-8", "replace")
    except BlockingIOError:
        return []
    lines: list[dict[str, Any]] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                lines.append(value)
    return lines


def _status(code: int | None, said: list[dict[str, Any]], nonce: str, limits: Limits) -> tuple[Status, str]:
    if any(line.get("nonce") == nonce for line in said):
        return "passed", ""
    if code is None:
        return "timed out", f"not done after {limits.seconds:g} seconds"
    if code == 128 + signal.SIGXCPU:
        return "timed out", f"used {limits.cpu_seconds} seconds of CPU time"
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        known = number in set(signal.Signals)
        return "killed", f"killed by {signal.Signals(number).name if known else f'signal {number}'}"
    failed = next((line["failed"] for line in said if isinstance(line.get("failed"), str)), None)
    if failed is None:
        return "failed", f"left with code {code} before the tests were done"
    return "failed", (str(failed).splitlines() or [""])[0]

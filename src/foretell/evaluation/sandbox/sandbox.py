"""Run code that a model wrote against its tests in a restricted process.

Every candidate gets a process group, an empty environment, a temporary directory that is removed afterwards, and limits
on CPU time, wall-clock time, memory, file size, open files and processes. Its output is truncated, and every process
that it started is killed when it ends. On Linux it also gets, if the kernel allows it without privileges:

* separate namespaces for network and processes (`isolated`): no network, and no process outlives the run;
* a read-only view of all file systems except its directory, and Landlock (version 3, Linux 6.2) with the same effect
  (`contained`). Landlock alone does not protect the permission bits and times of the user's files;
* if we are root, the rights of another user (and the right to read everything, if it cannot reach the interpreter).

Not guaranteed: that a candidate cannot *read* what we can read, that its total memory is bounded (the limit applies to
each of up to 16 processes), or that the kernel has no vulnerabilities. Without namespaces and Landlock only the limits
apply: the verdict says so, and untrusted code should run in a virtual machine. A pass requires a secret that is
reported after the last test, so exiting early does not pass; code that searches memory for it could forge a pass.
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
STARTUP = 60.0  # seconds that a busy machine may take to start an interpreter
SMALLEST = {"seconds": 0.1, "cpu_seconds": 1, "memory": 1 << 26, "file_bytes": 1, "processes": 1, "output": 0}
Status = Literal["passed", "failed", "timed out", "killed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that one candidate may use."""

    seconds: float = 60.0  # wall-clock time: generous, so that a busy machine does not change a verdict
    cpu_seconds: int = 10  # per process
    memory: int = 1 << 30  # bytes of address space per process
    file_bytes: int = 8 << 20  # size of the largest file, including the captured output
    processes: int = 16
    output: int = 2000  # characters of output that a verdict keeps

    def __post_init__(self) -> None:
        for name, least in SMALLEST.items():
            within(f"the limit on {name}", getattr(self, name), least, error=RequestError)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program and the tests that run after it in the same module."""

    code: str
    tests: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a candidate ended, and which restrictions were in force."""

    status: Status
    reason: str  # one line; empty for a pass
    output: str  # the last characters that it printed
    seconds: float
    isolated: bool  # it had no network, and no process can outlive it
    contained: bool  # it could not write outside its directory

    @property
    def passed(self) -> bool:
        return self.status == "passed"


def run_tests(
    candidates: Sequence[Candidate], *, allow_execution: bool, jobs: int = 1, limits: Limits | None = None
) -> list[Verdict]:
    """Test the candidates, `jobs` at a time, and return their verdicts in order."""
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
    job = {
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
            given.write(json.dumps(job).encode())
            given.seek(0)
            try:
                jail = _start(folder, given.fileno(), output.fileno(), writing)
            finally:
                os.close(writing)
            code = _supervise(jail, reading, limits.seconds)
            os.set_blocking(reading, False)  # a process that survives may keep the other end open
            reports = _read_reports(reading)
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * limits.output))
            printed = output.read().decode("utf-8", "replace")
    finally:
        os.close(reading)
    status, reason = _status(code, reports, nonce, limits)
    locks = reports[0] if reports else {}
    return Verdict(
        status=status,
        reason=reason,
        output=printed[-limits.output :] if limits.output else "",
        seconds=time.monotonic() - started,
        isolated=locks.get("isolated") is True,
        contained=locks.get("mounts") is True or locks.get("landlock") is True,
    )


def _start(folder: str, given: int, output: int, report: int) -> subprocess.Popen[bytes]:
    # Candidates do not inherit our environment. A fixed hash seed fixes the order of sets, so grades are repeatable.
    environment = {"HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    return subprocess.Popen(  # noqa: S603 - a fixed script in this interpreter
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
    """Wait for a jail and kill its process group; return its exit code, or None if it timed out."""
    try:
        locked_in = select.poll()  # wait for the first report: startup does not count
        locked_in.register(reading, select.POLLIN)
        locked_in.poll(STARTUP * 1000)
        return jail.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(jail.pid, signal.SIGKILL)
        jail.wait()


def _read_reports(reading: int) -> list[dict[str, Any]]:
    """Return the reports of the jail. A candidate can write to the pipe too, so everything is validated."""
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


def _status(code: int | None, reports: list[dict[str, Any]], nonce: str, limits: Limits) -> tuple[Status, str]:
    if any(line.get("nonce") == nonce for line in reports):
        return "passed", ""
    if code is None:
        return "timed out", f"not done after {limits.seconds:g} seconds"
    if code == 128 + signal.SIGXCPU:
        return "timed out", f"used {limits.cpu_seconds} seconds of CPU time"
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        known = number in set(signal.Signals)
        return "killed", f"killed by {signal.Signals(number).name if known else f'signal {number}'}"
    failed = next((line["failed"] for line in reports if isinstance(line.get("failed"), str)), None)
    if failed is None:
        return "failed", f"exited with code {code} before the tests were done"
    return "failed", (str(failed).splitlines() or [""])[0]

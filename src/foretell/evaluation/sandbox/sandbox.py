"""Run code that a model wrote against its tests, isolated from this machine and from the verdict.

Each candidate gets two processes (see `jail.py`): one runs its program, the other runs the tests and decides. Both are
isolated at the same level. docs/evaluation.md says what each level guarantees:

* "bubblewrap" and "namespaces": no network, no process outlives the run, and the processes see an empty file system
  that contains only the interpreter (read-only) and a small folder in memory;
* "limits": only limits on time, memory, processes and the size of files. The program can read and change what the
  user can; at this level it could also attack the process that decides. It has to be chosen.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from foretell.errors import PermissionNeededError, RequestError, SandboxError, one_of, within

JAIL, INSIDE = Path(__file__).with_name("jail.py"), "/jail.py"  # the script, and where it is in a new root
STARTUP = 60.0  # seconds that a busy machine may take to start two interpreters
GRACE = 10.0  # seconds for a process that has closed its pipe to end
SMALLEST = {
    "seconds": 0.1,
    "cpu_seconds": 1,
    "memory": 1 << 26,
    "file_bytes": 1,
    "disk_bytes": 1 << 12,
    "files": 10,
    "processes": 1,
    "output": 0,
}
WORK = "/work"  # the program's folder at these levels
NOBODY = 65534
FIRST_UID, UIDS = 2_000_000_000, 100_000  # if we are root, each program gets another user id
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
LEVELS = ("bubblewrap", "namespaces", "limits")  # the strongest first
DEFAULT_LEVELS = LEVELS[:2]
Status = Literal["passed", "failed", "timed out", "killed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that one candidate may use."""

    seconds: float = 60.0  # wall-clock time: generous, so that a busy machine does not change a verdict
    cpu_seconds: int = 10  # per process
    memory: int = 1 << 30  # bytes of address space per process
    file_bytes: int = 8 << 20  # size of the largest file, including the captured output
    disk_bytes: int = 32 << 20  # size of all files (not at the level "limits")
    files: int = 4096  # number of files and folders (not at the level "limits")
    processes: int = 16
    output: int = 2000  # characters of output that a verdict keeps

    def __post_init__(self) -> None:
        for name, least in SMALLEST.items():
            within(f"the limit on {name}", getattr(self, name), least, error=RequestError)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program and its tests, which use the program's names as if they were in the same module.

    Functions that are built in or imported from the standard library are the tests' own; `names` lists what the
    program has to define even if it has the name of one of these.
    """

    code: str
    tests: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a candidate ended, and how it was isolated."""

    status: Status
    reason: str  # one line; empty for a pass
    output: str  # the last characters that the program printed
    seconds: float
    level: str  # one of LEVELS

    @property
    def passed(self) -> bool:
        return self.status == "passed"


def run_tests(
    candidates: Sequence[Candidate],
    *,
    allow_execution: bool,
    level: str | None = None,
    jobs: int = 1,
    limits: Limits | None = None,
) -> list[Verdict]:
    """Test the candidates, `jobs` at a time, and return their verdicts in order.

    `level` is one of LEVELS (default: the first of DEFAULT_LEVELS that works here). Raises SandboxError if it does not
    work here.
    """
    if not allow_execution:
        raise PermissionNeededError("allow_execution=True")
    within("jobs", jobs, 1, error=RequestError)
    bounds, used = limits or Limits(), find_level(level)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda candidate: _run(candidate, bounds, used), candidates))


def find_level(level: str | None = None) -> str:
    """Return the level to use: `level` if it works here, or the strongest of DEFAULT_LEVELS."""
    if level is not None:
        one_of("sandbox level", level, LEVELS, RequestError)
    tried = []
    for one in DEFAULT_LEVELS if level is None else (level,):
        problem = why_unavailable(one)
        if problem is None:
            return one
        tried.append(f"{one}: {problem}")
    raise SandboxError(
        f"code that a model wrote cannot be isolated on this machine ({'; '.join(tried)}). Install bubblewrap (e.g. "
        "`apt install bubblewrap`) where user namespaces are allowed. On a machine where the code may do whatever you "
        'can do, sandbox="limits" (--sandbox limits) accepts less; see docs/evaluation.md'
    )


@cache
def why_unavailable(level: str) -> str | None:
    """Return why a level does not work here, or None if a test program passes."""
    try:
        verdict = _run(Candidate("", ""), Limits(), level)
    except (OSError, SandboxError) as error:
        return str(error)
    return None if verdict.passed else verdict.reason


def _run(candidate: Candidate, limits: Limits, level: str) -> Verdict:
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder()) if level == "limits" else WORK
        output = stack.enter_context(tempfile.TemporaryFile())
        pipes = [os.pipe() for _ in range(3)]
        (their_requests, requests), (replies, their_replies), (reports, report) = pipes
        job = {"level": level, "limits": asdict(limits), "shared": _shared_files(), "folder": None}
        tests = job | asdict(candidate) | {"requests": requests, "replies": replies, "report": report}
        program = job | {"requests": their_requests, "replies": their_replies, "folder": folder}
        stack.callback(os.close, reports)
        try:
            judge = _start("tests", tests, subprocess.DEVNULL, (requests, replies, report))
            stack.callback(_end, judge)
            model = _start("program", program, output.fileno(), (their_requests, their_replies))
            stack.callback(_end, model)
        finally:
            for end in (requests, their_requests, replies, their_replies, report):
                os.close(end)
        told = _listen(reports, limits.seconds)
        code = _end(judge, 0.0 if "late" in told else GRACE)
        if "gone" in told or "ready" not in told:
            code = _end(model, GRACE)
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * limits.output))
        printed = output.read().decode("utf-8", "replace")
    if "ready" not in told:
        why = (printed.strip().splitlines() or [f"exit code {code}"])[-1]
        raise SandboxError(f"the sandbox did not start: {why[:300]}")
    status, reason = _status(told, code, limits)
    shown = printed[-limits.output :] if limits.output else ""
    return Verdict(status, reason, shown, time.monotonic() - started, level)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="foretell-")
    try:
        yield folder
    finally:
        # Not shutil: a program may leave a thousand nested folders, or links that lead a clean-up outside. Root can
        # remove a folder without write permission; its chmod could be led outside by a process that still runs.
        opened = [] if os.getuid() == 0 else [["chmod", "-R", "u+rwX", "--", folder]]
        for command in (*opened, ["rm", "-rf", "--", folder]):
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)  # noqa: S603


def _start(role: str, job: dict[str, Any], output: int, passed: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start the jail in this role with its job as standard input; it inherits only the `passed` file descriptors."""
    # A program does not inherit our environment. A fixed hash seed fixes the order of sets, so grades are repeatable.
    folder = job["folder"] or "/"
    environment = {"HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    limited = job["level"] == "limits"
    python = [_interpreter(), "-s", "-S", "-P", "-B", str(JAIL) if limited else INSIDE, role]
    if job["level"] == "bubblewrap":
        python = [*_bubblewrap(job["shared"]), *python]
    elif job["level"] == "namespaces":
        python = [*_unshare(), *python[:-2], str(JAIL), role]  # the jail builds its root itself
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(job | {"user": FIRST_UID + secrets.randbelow(UIDS)}).encode())
        given.seek(0)
        return subprocess.Popen(  # noqa: S603 - a fixed script in this interpreter
            python,
            cwd="/",
            env=environment,
            stdin=given,
            stdout=output,
            stderr=output,
            pass_fds=passed,
            start_new_session=True,
        )


def _interpreter() -> str:
    return os.path.realpath(sys.executable)  # not the link in a virtual environment


def _shared_files() -> dict[str, str]:
    """Return all files and folders of this machine that an isolated process can read, and where it sees them."""
    interpreter = (_interpreter(), f"{sys.base_prefix}/lib")
    paths = [path for path in dict.fromkeys((*LIBRARIES, *interpreter, *DEVICES)) if Path(path).exists()]
    inner = {path for path in paths for other in paths if path.startswith(f"{other}/")}
    return {path: path for path in paths if path not in inner} | {str(JAIL): INSIDE}


def _bubblewrap(shared: Mapping[str, str]) -> list[str]:
    # Capabilities last until the jail has mounted the working folder and changed its user.
    root = os.getuid() == 0
    needed = ("SYS_ADMIN", "SETUID", "SETGID", "CHOWN") if root else ("SYS_ADMIN",)
    options = ["--die-with-parent", "--new-session", "--chdir", "/", "--cap-drop", "ALL"]
    options += [option for name in needed for option in ("--cap-add", f"CAP_{name}")]
    options += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
    options += [] if root else ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    for source, target in shared.items():
        for parent in reversed(Path(target).parents[:-1]):  # otherwise some of them are closed to other users
            options += ["--dir", str(parent)]
        options += ["--dev-bind" if source in DEVICES else "--ro-bind", source, target]
    return [_find_program("bwrap"), *options, "--dir", WORK, "--remount-ro", "/", "--"]


def _unshare() -> list[str]:
    spaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return [_find_program("setpriv"), "--pdeathsig", "KILL", _find_program("unshare"), *spaces, *user, "--"]


def _find_program(name: str) -> str:
    path = shutil.which(name)  # the environment of the new process has no PATH
    if path is None:
        raise SandboxError(f"{name} is not installed")
    return path


def _end(process: subprocess.Popen[bytes], grace: float = 0.0) -> int:
    """Wait `grace` seconds for a process, kill its process group, and return its exit code."""
    if process.returncode is not None:  # its number may belong to another process by now
        return process.returncode
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _listen(reports: int, seconds: float) -> dict[str, Any]:
    """Return what the tests' process reports until it ends or is late: `seconds` after both processes are ready."""
    told: dict[str, Any] = {}
    waiting, deadline = select.poll(), time.monotonic() + STARTUP
    waiting.register(reports, select.POLLIN)
    while waiting.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
        text = os.read(reports, 1 << 16)
        if not text:
            return told
        for line in text.splitlines():  # a message is written at once, so no line is cut
            with contextlib.suppress(ValueError, TypeError):  # at "limits" a program may get hold of the pipe
                told |= json.loads(line)
        if told == {"ready": True}:
            deadline = time.monotonic() + seconds  # starting does not count
    return told | {"late": True}


def _status(told: dict[str, Any], code: int, limits: Limits) -> tuple[Status, str]:
    """Return status and reason; `code` is the exit code of the process that ended without a verdict."""
    if "passed" in told:
        return "passed", ""
    if "late" in told:
        return "timed out", f"not done after {limits.seconds:g} seconds"
    if "failed" in told:
        text = str(told["failed"]).encode(errors="replace").decode()  # a program can raise half a surrogate pair
        return "failed", (text.splitlines() or [""])[0]
    number = -code if code < 0 else code - 128
    if number == signal.SIGXCPU:
        return "timed out", f"used {limits.cpu_seconds} seconds of CPU time"
    if number > 0:
        known = number in set(signal.Signals)
        return "killed", f"killed by {signal.Signals(number).name if known else f'signal {number}'}"
    return "failed", f"exited with code {code} before the tests were done"

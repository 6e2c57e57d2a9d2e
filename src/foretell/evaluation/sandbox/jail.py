"""The script inside the sandbox: it restricts itself, runs one candidate with its tests, and reports the outcome.

`sandbox.py` runs it as a program, and it imports only the standard library. Each restriction is tried separately and
reported, because the kernel and the user decide which of them are available.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys
import types
from pathlib import Path
from typing import Any

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
SPACES = NEW_MOUNTS | NEW_IPC | NEW_PIDS | NEW_NET
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000  # flags of mount(2)
SYS_MOUNT_SETATTR, AT_RECURSIVE, READ_ONLY = 442, 0x8000, 1
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446
O_PATH = 0x200000
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
# All rights to change a file system (write, remove, create), then those that later Landlock versions added.
CHANGES = WRITE_FILE | sum(1 << bit for bit in range(4, 13))
ADDED = {2: 1 << 13, 3: TRUNCATE, 5: 1 << 15}
SET_DUMPABLE, KEEP_CAPS, NO_NEW_PRIVILEGES = 4, 8, 38  # options of prctl(2)
CAPABILITY_VERSION, READ_ANYTHING = 0x20080522, 1 << 2
FIRST_UID, UIDS = 2_000_000_000, 100_000  # if we are root, each candidate gets another user id
NOBODY = 65534
TESTS = "<tests>"  # file name of the tests in tracebacks
LINUX = sys.platform == "linux"
libc: Any = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    report = int(job["report"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    folder, owner = str(Path.cwd()), os.getuid()
    spaces = LINUX and _enter_namespaces()
    mounts = spaces and _mount_read_only(folder)
    if owner == 0:
        others = _drop_privileges(folder)
    else:
        others = 0 if spaces else _count_tasks(owner)  # a user namespace has its own count of processes
        if LINUX:
            _set_capabilities(0)  # with the rights of a new user namespace it could remount everything
    if os.fork() == 0:  # the first process of a new pid namespace: when it ends, all others are killed
        _guard(job, report, folder, {"isolated": spaces, "mounts": mounts}, others)
    _, status = os.wait()
    os._exit(_exit_code(status))


def _guard(job: dict[str, Any], report: int, folder: str, locks: dict[str, bool], others: int) -> None:
    candidate = os.fork()
    if candidate == 0:
        _set_limits(job["limits"], others)
        landlock = LINUX and _restrict_writes(folder)
        os.write(report, json.dumps({**locks, "landlock": landlock}).encode() + b"\n")
        _run(job["parts"], job["nonce"], report)
    if LINUX:
        libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)  # so that the candidate cannot trace this process
    while True:
        gone, status = os.wait()
        if gone == candidate:
            os._exit(_exit_code(status))


def _exit_code(status: int) -> int:
    """Return the exit code in the convention of shells: 128 plus the number of the signal."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _run(parts: list[str], nonce: str, report: int) -> None:
    """Run the parts in order in one module; it is a pass only if the last part runs to its end."""
    module = types.ModuleType("candidate")  # not __main__, so that `if __name__ == ...` blocks do not run
    sys.modules["candidate"], ours = module, os.getpid()
    try:
        for part, name in zip(parts, ("<candidate>", TESTS), strict=True):
            exec(compile(part, name, "exec"), module.__dict__)  # noqa: S102 - the purpose of the jail
        outcome = {"nonce": nonce}
    except BaseException as problem:  # noqa: BLE001 - a candidate may raise anything, even SystemExit
        outcome = {"failed": f"{type(problem).__name__}: {_describe(problem, parts[-1])}"[:300]}
    if os.getpid() == ours:  # processes that the candidate forked must not report
        os.write(report, json.dumps(outcome).encode() + b"\n")
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _describe(problem: BaseException, tests: str) -> str:
    """Return the text of an exception or, if it is empty (a plain assertion), the line of the tests that raised it."""
    try:
        line, step = "", problem.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == TESTS:
                line = tests.splitlines()[step.tb_lineno - 1].strip()
            step = step.tb_next
        return str(problem) or line
    except BaseException:  # noqa: BLE001 - str() of an exception may raise
        return "(no text)"


def _set_limits(limits: dict[str, int], others: int) -> None:
    seconds, size = limits["cpu_seconds"], limits["file_bytes"]
    wanted = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_AS: (limits["memory"],) * 2,
        resource.RLIMIT_FSIZE: (size, size),
        resource.RLIMIT_NPROC: (limits["processes"] + others + 3,) * 2,  # the jail needs three
        resource.RLIMIT_NOFILE: (128, 128),
        resource.RLIMIT_CORE: (0, 0),
    }
    for which, value in wanted.items():
        try:
            resource.setrlimit(which, value)
        except (OSError, ValueError):  # the system lacks this limit or already has a lower one
            continue
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def _enter_namespaces() -> bool:
    """Enter new namespaces for network, processes and mounts; without root, in a new user namespace."""
    if os.geteuid() == 0:
        return bool(libc.unshare(SPACES) == 0)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(SPACES | NEW_USER) != 0:
        return False
    for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        try:
            Path("/proc/self", name).write_text(line)
        except OSError:  # without a map the user has no name, which does not matter here
            continue
    return True


def _mount_read_only(folder: str) -> bool:
    """Mount everything read-only except `folder`."""
    here, everywhere = folder.encode(), struct.pack("QQQQ", READ_ONLY, 0, 0, 0)
    if libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) or libc.mount(here, here, None, BIND, None):
        return False
    os.chdir(folder)  # enter its new mount
    if libc.syscall(SYS_MOUNT_SETATTR, -1, b"/", AT_RECURSIVE, everywhere, len(everywhere)):
        return False
    writable = struct.pack("QQQQ", 0, READ_ONLY, 0, 0)
    return bool(libc.syscall(SYS_MOUNT_SETATTR, -1, here, 0, writable, len(writable)) == 0)


def _drop_privileges(folder: str) -> int:
    """Give up root and return the number of processes that the new user already has."""
    chosen = FIRST_UID + os.getpid() % UIDS
    if not LINUX or not _is_mapped(chosen):
        chosen = NOBODY
    os.chown(folder, chosen, chosen)
    keeps = LINUX and not _is_reachable(os.__file__)
    if keeps:
        libc.prctl(KEEP_CAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(chosen, chosen, chosen)
    os.setresuid(chosen, chosen, chosen)
    if LINUX:
        # Another user cannot reach an interpreter in root's home: in that case, keep the right to read.
        _set_capabilities(READ_ANYTHING if keeps else 0)
    return _count_tasks(chosen) if chosen == NOBODY else 0


def _is_mapped(user: int) -> bool:
    """Whether this user id exists in our user namespace; in a container it may not."""
    spans = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(first) <= user < int(first) + int(count) for first, _, count in spans)


def _is_reachable(file: str) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in Path(file).resolve().parents)


def _set_capabilities(kept: int) -> None:
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0))


def _count_tasks(user: int) -> int:
    """Return the number of tasks of a user, all of which count towards the limit on processes."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == user:
                count += sum(1 for _ in (entry / "task").iterdir())
        except OSError:  # the process has ended meanwhile
            continue
    return count


def _restrict_writes(folder: str) -> bool:
    """Forbid TCP and changes outside `folder` with Landlock. Returns False below version 3 (allows truncation)."""
    version = libc.syscall(SYS_LANDLOCK_CREATE, None, 0, 1)
    if version < 3:
        return False
    changes = CHANGES | sum(bits for since, bits in ADDED.items() if version >= since)
    net, scope = 3 if version >= 4 else 0, 3 if version >= 6 else 0  # bind and connect; sockets and signals
    rules = struct.pack("QQQ", changes, net, scope)
    ruleset = libc.syscall(SYS_LANDLOCK_CREATE, rules, 24 if version >= 6 else 16 if version >= 4 else 8, 0)
    if ruleset < 0:
        return False
    for path, allowed in ((folder, changes), (os.devnull, WRITE_FILE | TRUNCATE)):
        place = os.open(path, O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed, place)
        libc.syscall(SYS_LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(place)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = libc.syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return bool(done)


if __name__ == "__main__":
    main()

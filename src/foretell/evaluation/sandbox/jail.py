"""The inside of the sandbox: a script that locks itself in, runs one candidate with its tests, and reports.

It is run as a program by `sandbox.py` and imports nothing but the standard library. Every lock is tried on its own and
reported, because which of them a system grants depends on its kernel and on who asks.
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
# Everything that changes a file system: write, remove, make of every kind; then what later kernels added.
CHANGES = WRITE_FILE | sum(1 << bit for bit in range(4, 13))
ADDED = {2: 1 << 13, 3: TRUNCATE, 5: 1 << 15}
SET_DUMPABLE, KEEP_CAPS, NO_NEW_PRIVILEGES = 4, 8, 38  # options of prctl(2)
CAPABILITY_VERSION, READ_ANYTHING = 0x20080522, 1 << 2
FIRST_UID, UIDS = 2_000_000_000, 100_000  # a user of its own for each candidate, where root may choose
NOBODY = 65534
TESTS = "<tests>"  # the name of the tests' file
LINUX = sys.platform == "linux"
libc: Any = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    order = json.loads(sys.stdin.buffer.read())
    report = int(order["report"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    folder, owner = str(Path.cwd()), os.getuid()
    spaces = LINUX and _namespaces()
    mounts = spaces and _read_only_mounts(folder)
    if owner == 0:
        crowd = _unprivileged(folder)
    else:
        crowd = 0 if spaces else _population(owner)  # a user namespace counts its processes by itself
        if LINUX:
            _capabilities(0)  # what a new user namespace gives could be used to mount everything again
    if os.fork() == 0:  # the first process of a new pid namespace: all others die with it
        _guard(order, report, folder, {"isolated": spaces, "mounts": mounts}, crowd)
    _, status = os.wait()
    os._exit(_code(status))


def _guard(order: dict[str, Any], report: int, folder: str, locks: dict[str, bool], crowd: int) -> None:
    candidate = os.fork()
    if candidate == 0:
        _limit(order["limits"], crowd)
        landlock = LINUX and _landlock(folder)
        os.write(report, json.dumps({**locks, "landlock": landlock}).encode() + b"\n")
        _run(order["parts"], order["nonce"], report)
    if LINUX:
        libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)  # not to be traced by the candidate
    while True:
        gone, status = os.wait()
        if gone == candidate:
            os._exit(_code(status))


def _code(status: int) -> int:
    """An exit code as shells write it: 128 and more for a signal."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _run(parts: list[str], nonce: str, report: int) -> None:
    """Run the parts one after the other in one module; only the end of the last one is a pass."""
    module = types.ModuleType("candidate")  # not __main__: a script's own entry point stays asleep
    sys.modules["candidate"], ours = module, os.getpid()
    try:
        for part, name in zip(parts, ("<candidate>", TESTS), strict=True):
            exec(compile(part, name, "exec"), module.__dict__)  # noqa: S102 - what the jail is for
        outcome = {"nonce": nonce}
    except BaseException as problem:  # noqa: BLE001 - a candidate may raise anything, SystemExit too
        outcome = {"failed": f"{type(problem).__name__}: {_told(problem, parts[-1])}"[:300]}
    if os.getpid() == ours:  # a process that the candidate forked has no say
        os.write(report, json.dumps(outcome).encode() + b"\n")
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _told(problem: BaseException, tests: str) -> str:
    """What an exception says; the line of the tests that raised it if it says nothing, as a plain assertion does."""
    try:
        line, step = "", problem.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == TESTS:
                line = tests.splitlines()[step.tb_lineno - 1].strip()
            step = step.tb_next
        return str(problem) or line
    except BaseException:  # noqa: BLE001 - even its text may raise
        return "(no text)"


def _limit(limits: dict[str, int], crowd: int) -> None:
    seconds, size = limits["cpu_seconds"], limits["file_bytes"]
    wanted = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_AS: (limits["memory"],) * 2,
        resource.RLIMIT_FSIZE: (size, size),
        resource.RLIMIT_NPROC: (limits["processes"] + crowd + 3,) * 2,  # three are ours
        resource.RLIMIT_NOFILE: (128, 128),
        resource.RLIMIT_CORE: (0, 0),
    }
    for which, value in wanted.items():
        try:
            resource.setrlimit(which, value)
        except (OSError, ValueError):  # a system that lacks one, or has a lower one already
            continue
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def _namespaces() -> bool:
    """Own network, processes and mounts; a user who is not root becomes one in a user namespace for that."""
    if os.geteuid() == 0:
        return bool(libc.unshare(SPACES) == 0)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(SPACES | NEW_USER) != 0:
        return False
    for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        try:
            Path("/proc/self", name).write_text(line)
        except OSError:  # without a map it is a user without a name, which does not matter here
            continue
    return True


def _read_only_mounts(folder: str) -> bool:
    """Everything read-only, but for `folder`."""
    here, everywhere = folder.encode(), struct.pack("QQQQ", READ_ONLY, 0, 0, 0)
    if libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) or libc.mount(here, here, None, BIND, None):
        return False
    os.chdir(folder)  # into the new mount of it
    if libc.syscall(SYS_MOUNT_SETATTR, -1, b"/", AT_RECURSIVE, everywhere, len(everywhere)):
        return False
    writable = struct.pack("QQQQ", 0, READ_ONLY, 0, 0)
    return bool(libc.syscall(SYS_MOUNT_SETATTR, -1, here, 0, writable, len(writable)) == 0)


def _unprivileged(folder: str) -> int:
    """Stop being root; the number of processes that the new user has already."""
    chosen = FIRST_UID + os.getpid() % UIDS
    if not LINUX or not _mapped(chosen):
        chosen = NOBODY
    os.chown(folder, chosen, chosen)
    keeps = LINUX and not _reachable(os.__file__)
    if keeps:
        libc.prctl(KEEP_CAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(chosen, chosen, chosen)
    os.setresuid(chosen, chosen, chosen)
    if LINUX:
        # An interpreter in root's home is out of another user's reach; reading is then all that is left of root.
        _capabilities(READ_ANYTHING if keeps else 0)
    return _population(chosen) if chosen == NOBODY else 0


def _mapped(user: int) -> bool:
    """Whether this user exists in our user namespace; in a container it may not."""
    spans = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(first) <= user < int(first) + int(count) for first, _, count in spans)


def _reachable(file: str) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in Path(file).resolve().parents)


def _capabilities(kept: int) -> None:
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0))


def _population(user: int) -> int:
    """Tasks of a user, because the limit on processes counts them all."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == user:
                count += sum(1 for _ in (entry / "task").iterdir())
        except OSError:  # it ended while we looked
            continue
    return count


def _landlock(folder: str) -> bool:
    """Refuse every change to the file system outside `folder`, and TCP; False before version 3, which lets truncate."""
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

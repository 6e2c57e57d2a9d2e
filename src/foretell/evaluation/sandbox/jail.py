"""The script inside the sandbox: it gives up its rights, then runs either the tests or the candidate's program.

`sandbox.py` starts it twice, as two processes that share only a pair of pipes. The *program* process runs the code that
a model wrote. The *tests* process runs the tests and decides the verdict; it never runs the model's code. It calls the
program's functions by writing requests to a pipe, and reads back plain values, which it builds itself. So whatever the
program does to its own interpreter changes only the values that it returns.

This file is a separate program and imports only the standard library.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib
import json
import operator
import os
import platform
import resource
import struct
import sys
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOBODY = 65534
TESTS = "<tests>"  # file name of the tests in tracebacks
LONGEST = 300  # characters of a reason
LINUX = sys.platform == "linux"
libc: Any = ctypes.CDLL(None, use_errno=True)


def main(role: str) -> None:
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.set_int_max_str_digits(0)  # a program may return a larger integer
    lock(job)
    if role == "program":
        serve(job["requests"], job["replies"])
    else:
        judge(job)


# --- Restrictions ---------------------------------------------------------------------------------------------------

BIND, RECURSIVE, NO_SUID, NO_DEVICES, DETACH = 0x1000, 0x4000, 2, 4, 2  # flags of mount(2) and umount2(2)
SYS_MOUNT_SETATTR, AT_RECURSIVE, READ_ONLY = 442, 0x8000, 1  # this number is the same on all architectures
SET_DUMPABLE, KEEP_CAPABILITIES, SET_SECCOMP, NO_NEW_PRIVILEGES = 4, 8, 22, 38  # options of prctl(2)
CAPABILITY_VERSION, READ_ANYTHING = 0x20080522, 1 << 2
NEW_USER_NAMESPACE, ERROR, ALLOW = 0x10000000, 0x00050000, 0x7FFF0000
# System calls that use memory which no limit counts (memfd_create, memfd_secret, shmget, msgget, semget), that could
# mount a larger file system (unshare, setns, mount) or that programs do not need and kernels had bugs in (ptrace,
# io_uring_setup, bpf, userfaultfd, add_key, keyctl, perf_event_open). Then: pivot_root, clone, clone3 and socket.
CALLS = {
    "x86_64": (0xC000003E, (319, 447, 29, 68, 64, 272, 308, 165, 101, 425, 321, 323, 248, 250, 298), 155, 56, 435, 41),
    "aarch64": (
        *(0xC00000B7, (279, 447, 194, 186, 190, 97, 268, 40, 117, 425, 280, 282, 217, 219, 241)),
        *(41, 220, 435, 198),
    ),
}
LOCAL_SOCKET = 1  # the other families are of no use here, and some (VSOCK) are not confined by namespaces


def lock(job: dict[str, Any]) -> None:
    """Apply the restrictions of the job's level. Above "limits", every restriction must succeed."""
    limits, strong = job["limits"], job["level"] != "limits"
    folder = job["folder"]  # None for the tests, which need none
    if job["level"] == "namespaces":
        build_root(job["shared"], folder)
    if strong and folder:
        size = f"size={limits['disk_bytes']},nr_inodes={limits['files']},mode=1777"
        check(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", NO_SUID | NO_DEVICES, size.encode()))
    os.chdir(folder or "/")
    drop_privileges(folder, job["user"], strong)
    set_limits(limits)
    if strong:
        filter_calls()
    if os.getpid() == 1:  # the first process of a namespace ignores most signals, so a child does the work
        child = os.fork()
        if child:
            while (ended := os.wait())[0] != child:
                pass
            code = os.waitstatus_to_exitcode(ended[1])
            os._exit(code if code >= 0 else 128 - code)


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def build_root(shared: dict[str, str], folder: str | None) -> None:
    """Replace the root by a read-only one that contains only the `shared` files and an empty `folder`."""
    root = "/proc"  # any folder does that contains no part of the interpreter
    check(libc.mount(b"tmpfs", root.encode(), b"tmpfs", NO_SUID, b"size=1m,mode=755"))
    for source, target in shared.items():
        place = Path(root + target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        check(libc.mount(source.encode(), bytes(place), None, BIND | RECURSIVE, None))
    for name in (folder or "", "/old"):
        Path(root + name).mkdir(exist_ok=True)
    flags = struct.pack("QQQQ", READ_ONLY | NO_SUID, 0, 0, 0)
    check(libc.syscall(SYS_MOUNT_SETATTR, -1, root.encode(), AT_RECURSIVE, flags, len(flags)))
    check(libc.syscall(CALLS[platform.machine()][2], root.encode(), f"{root}/old".encode()))
    os.chdir("/")
    check(libc.umount2(b"/old", DETACH))


def drop_privileges(folder: str | None, user: int, strong: bool) -> None:
    """Become another user if we are root, and give up all capabilities."""
    kept = 0
    if os.getuid() == 0:
        if LINUX and not strong:
            # Another user cannot reach an interpreter in root's home, and at this level all files can be read anyway.
            kept = READ_ANYTHING
            libc.prctl(KEEP_CAPABILITIES, 1, 0, 0, 0)
        for other in (user, NOBODY):  # a container may lack the first; a user namespace has only its own root
            with contextlib.suppress(OSError):
                if folder:
                    os.chown(folder, other, other)
                os.setgroups([])
                os.setgid(other)
                os.setuid(other)
                break
    if LINUX:
        check(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        check(libc.capset(struct.pack("Ii", CAPABILITY_VERSION, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0)))


def set_limits(limits: dict[str, int]) -> None:
    seconds, size = limits["cpu_seconds"], limits["file_bytes"]
    wanted = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_AS: (limits["memory"],) * 2,
        resource.RLIMIT_FSIZE: (size, size),
        resource.RLIMIT_NPROC: (limits["processes"] + 3,) * 2,  # the jail itself may need three
        resource.RLIMIT_NOFILE: (128, 128),
        resource.RLIMIT_CORE: (0, 0),
    }
    for which, value in wanted.items():
        with contextlib.suppress(OSError, ValueError):  # the system lacks this limit or already has a lower one
            resource.setrlimit(which, value)


def filter_calls() -> None:
    """Refuse some system calls (see CALLS) with seccomp."""
    architecture, refused, _, clone, clone3, socket = CALLS[platform.machine()]
    load, equal, at_least, has_bits, done = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of a classic BPF program
    refuse = (done, 0, 0, ERROR | 1)
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), refuse]  # offset 4: the architecture; 0: the call
    program += [(load, 0, 0, 0), (at_least, 0, 1, 1 << 30), refuse]  # numbers of the x32 variant
    for number in refused:
        program += [(equal, 0, 1, number), refuse]
    program += [(equal, 0, 1, clone3), (done, 0, 0, ERROR | 38)]  # "not implemented": libc then uses clone
    allow = (done, 0, 0, ALLOW)
    program += [(equal, 0, 4, clone), (load, 0, 0, 16), (has_bits, 0, 1, NEW_USER_NAMESPACE), refuse, allow]
    program += [(equal, 0, 3, socket), (load, 0, 0, 16), (equal, 1, 0, LOCAL_SOCKET), refuse, allow]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    check(libc.prctl(SET_SECCOMP, 2, struct.pack("H6xQ", len(program), ctypes.addressof(buffer)), 0, 0))


# --- Values that cross the pipes ------------------------------------------------------------------------------------

SEQUENCES: dict[str, type[Any]] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}
MAPPINGS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Counter, OrderedDict, dict)}
OTHERS: dict[str, tuple[Any, Callable[[Any], tuple[Any, ...]], Callable[..., Any]]] = {
    "bytes": ((bytes, bytearray), lambda value: (value.decode("latin-1"),), lambda text: text.encode("latin-1")),
    "complex": (complex, lambda value: (value.real, value.imag), complex),
    "range": (range, lambda value: (value.start, value.stop, value.step), range),
}
Keep = Callable[[Any], int]  # returns the number of an object that cannot be copied
Find = Callable[[int], Any]  # returns the object with this number


def encode(value: Any, keep: Keep) -> Any:
    """Return a copy that JSON can represent. Instances of subclasses become instances of the built-in class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for name, kind in SEQUENCES.items():
        if isinstance(value, kind):
            return [name, *(encode(item, keep) for item in kind.__iter__(value))]
    for name, kind in MAPPINGS.items():
        if isinstance(value, kind):
            return [name, *([encode(key, keep), encode(item, keep)] for key, item in dict.items(value))]
    for name, (kinds, take_apart, _) in OTHERS.items():
        if isinstance(value, kinds):
            return [name, *take_apart(value)]
    return ["object", keep(value)]


def decode(value: Any, find: Find) -> Any:
    """Build the value that `encode` describes. The description may be hostile: only the types above can result."""
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise TypeError("not an encoded value")
        return value
    name, *items = value
    if name in SEQUENCES:
        return SEQUENCES[name](decode(item, find) for item in items)
    if name in MAPPINGS:
        return MAPPINGS[name]({decode(key, find): decode(item, find) for key, item in items})
    if name in OTHERS:
        return OTHERS[name][2](*items)
    if name == "object":
        return find(*items)
    raise TypeError("not an encoded value")


# --- The program's process ------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *given, **named: target(*given, **named),
    "bool": bool,
    "equal": operator.eq,
    "get": getattr,
    "item": operator.getitem,
    "iter": iter,
    "len": len,
    "next": next,
    "set": setattr,
    "str": str,
}


def serve(requests: int, replies: int) -> None:
    """Run the program and do what the tests ask. Nothing here is protected from the program, and need not be."""
    module = types.ModuleType("candidate")  # not __main__, so that `if __name__ == ...` blocks do not run
    sys.modules["candidate"], ours = module, os.getpid()
    objects: list[Any] = [module]

    def keep(value: Any) -> int:
        for number, known in enumerate(objects):
            if known is value:
                return number
        objects.append(value)
        return len(objects) - 1

    OPERATIONS["load"] = lambda target, code: exec(compile(code, "<candidate>", "exec"), target.__dict__)  # noqa: S102
    for line in os.fdopen(requests, "rb"):
        number, operation, *arguments = json.loads(line)
        try:
            given, named = (decode(one, objects.__getitem__) for one in arguments)
            reply = [number, encode(OPERATIONS[operation](*given, **named), keep)]
        except BaseException as problem:  # noqa: BLE001 - a program may raise anything, even SystemExit
            reply = [number, type(problem).__name__, _text_of(problem)]
        if os.getpid() != ours:  # a process that the program forked
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        left = memoryview(json.dumps(reply).encode() + b"\n")
        while left:
            left = left[os.write(replies, left) :]
    os._exit(0)


def _text_of(problem: BaseException) -> str:
    try:
        return str(problem)[:LONGEST]
    except BaseException:  # noqa: BLE001 - str() of an exception may raise
        return "(no text)"


# --- The tests' process ---------------------------------------------------------------------------------------------


class Gone(BaseException):
    """The program has ended or broken the protocol. Not an Exception, so that tests do not catch it by mistake."""


class ProgramError(Exception):
    """The program raised an exception that is not a built-in one."""


class Program:
    """The tests' end of the pipes."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies, self.count, self.gone = requests, os.fdopen(replies, "rb"), 0, False
        self.module = Remote(self, 0)

    def ask(self, operation: str, /, *given: Any, **named: Any) -> Any:
        """Request an operation and return its result, or raise the exception that the program raised."""
        self.count += 1
        request = [self.count, operation, encode(given, _number_of), encode(named, _number_of)]
        reply = self._exchange(json.dumps(request).encode() + b"\n")
        if len(reply) == 2:
            return decode(reply[1], lambda number: Remote(self, operator.index(number)))
        if operation == "next" and reply[1] == "StopIteration":
            raise StopIteration
        raise _rebuild(str(reply[1]), str(reply[2]))

    def _exchange(self, request: bytes) -> list[Any]:
        try:
            left = memoryview(request)
            while left:
                left = left[os.write(self.requests, left) :]
            reply = json.loads(self.replies.readline())
            if isinstance(reply, list) and len(reply) in (2, 3) and reply[0] == self.count and not self.gone:
                return reply
        except (OSError, ValueError, MemoryError, RecursionError):
            pass
        self.gone = True
        raise Gone


def _number_of(value: Any) -> int:
    if type(value) is Remote:
        return value.remote_number
    raise TypeError(f"the tests pass a {type(value).__name__} to the program, which is not supported")


def _rebuild(name: str, text: str) -> Exception:
    """Return the built-in exception with this name, or one of a new class; never one that controls a loop."""
    known: Any = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and not name.startswith("Stop"):
        with contextlib.suppress(TypeError):  # some need more than a text
            same: Exception = known(text)
            return same
    other: Exception = type(name if name.isidentifier() else "Exception", (ProgramError,), {})(text)
    return other


class Remote:
    """An object of the program that cannot be copied: a function, a class or instance, an iterator.

    It can be called, iterated and read. It never equals a plain value, and arithmetic and order are not defined:
    its class could answer these as the tests hope, without computing anything.
    """

    __slots__ = ("remote_number", "remote_program")
    remote_number: int
    remote_program: Program

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "remote_program", program)
        object.__setattr__(self, "remote_number", number)

    def __getattr__(self, name: str) -> Any:
        return self.remote_program.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.remote_program.ask("set", self, name, value)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.remote_program.ask("call", self, *given, **named)

    def __iter__(self) -> Any:
        return self.remote_program.ask("iter", self)

    def __next__(self) -> Any:
        return self.remote_program.ask("next", self)

    def __len__(self) -> Any:
        return self.remote_program.ask("len", self)

    def __getitem__(self, key: Any) -> Any:
        return self.remote_program.ask("item", self, key)

    def __bool__(self) -> Any:
        return self.remote_program.ask("bool", self)

    def __str__(self) -> Any:
        return self.remote_program.ask("str", self)

    def __eq__(self, other: object) -> bool:
        return type(other) is Remote and (
            self.remote_number == other.remote_number or self.remote_program.ask("equal", self, other) is True
        )

    def __hash__(self) -> int:
        return hash(self.remote_number)


def judge(job: dict[str, Any]) -> None:
    """Run the tests and report the outcome: a pass only if they run to their end and the program still answers."""

    def report(**message: Any) -> None:
        os.write(job["report"], json.dumps(message).encode() + b"\n")

    if LINUX:
        libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)  # at "limits", so that a process of the same user cannot trace this one
    program = Program(job["requests"], job["replies"])
    try:
        program.ask("bool", program.module)
        report(ready=True)
        program.ask("load", program.module, job["code"])
        space = {"__name__": "tests", **_find_names(job["tests"], frozenset(job["names"]), program)}
        exec(compile(job["tests"], TESTS, "exec"), space)  # noqa: S102 - they are part of the benchmark
        program.ask("bool", program.module)
        report(passed=True)
    except BaseException as problem:  # noqa: BLE001 - tests may raise anything
        if program.gone:
            report(gone=True)
        else:
            report(failed=f"{type(problem).__name__}: {_describe(problem, job['tests'])}"[:LONGEST])
    os._exit(0)


def _find_names(tests: str, theirs: frozenset[str], program: Program) -> dict[str, Any]:
    """Return the program's objects that the tests use.

    Built-in functions and modules of the standard library are our own, unless the benchmark says (`theirs`) that the
    program has to define this name: a program could define an `abs` that is always 0.
    """
    found: dict[str, Any] = {}
    for name in sorted({node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}):
        if name not in theirs and hasattr(builtins, name):
            continue
        ours = name not in theirs and name in sys.stdlib_module_names
        with contextlib.suppress(Exception):  # the tests may define it themselves
            found[name] = importlib.import_module(name) if ours else program.ask("get", program.module, name)
    return found


def _describe(problem: BaseException, tests: str) -> str:
    """Return the text of an exception or, if it is empty (a plain assertion), the line of the tests that raised it."""
    line, step = "", problem.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == TESTS:
            line = tests.splitlines()[step.tb_lineno - 1].strip()
        step = step.tb_next
    text = problem.args[0] if problem.args and isinstance(problem.args[0], str) else _text_of(problem)
    return text or line


if __name__ == "__main__":
    main(sys.argv[1])

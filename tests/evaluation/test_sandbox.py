"""The sandbox runs untrusted code: the verdict cannot be forged, and nothing outside is reached or harmed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foretell.errors import RequestError, SandboxError
from foretell.evaluation.sandbox import sandbox
from foretell.evaluation.sandbox.sandbox import DEFAULT_LEVELS, LEVELS, Candidate, Limits, Verdict, run_tests
from tests.evaluation.levels import BEST_LEVEL

PATIENT = Limits(seconds=30.0)
QUICK = Limits(seconds=1.0)


def run(code: str, tests: str = "", limits: Limits = PATIENT, level: str = BEST_LEVEL) -> Verdict:
    return run_tests([Candidate(code, tests)], allow_execution=True, limits=limits, level=level)[0]


def skip_unless_available(level: str) -> str:
    if (problem := sandbox.why_unavailable(level)) is not None:
        pytest.skip(f"the sandbox {level!r} does not work here: {problem}")
    return level


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return skip_unless_available(request.param)


@pytest.fixture(params=DEFAULT_LEVELS)
def strong(request: pytest.FixtureRequest) -> str:
    """A level that isolates."""
    return skip_unless_available(request.param)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder outside the sandbox that only the sandbox protects: everybody may read and write it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_running_code_has_to_be_allowed() -> None:
    with pytest.raises(RequestError, match="allow_execution=True"):
        run_tests([Candidate("", "")], allow_execution=False)
    with pytest.raises(RequestError, match="jobs"):
        run_tests([], allow_execution=True, jobs=0)
    with pytest.raises(RequestError, match="seconds"):
        Limits(seconds=0)


def test_less_isolation_has_to_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "why_unavailable", lambda level: None if level == "limits" else "not installed")
    with pytest.raises(SandboxError, match=r"bubblewrap: not installed; namespaces: .*apt install.*--sandbox limits"):
        sandbox.find_level()
    with pytest.raises(SandboxError, match=r"\(namespaces: not installed\)"):
        sandbox.find_level("namespaces")
    assert sandbox.find_level("limits") == "limits"
    with pytest.raises(RequestError, match="unknown sandbox level 'limit'; did you mean 'limits'"):
        sandbox.find_level("limit")
    monkeypatch.setattr(sandbox, "why_unavailable", lambda _: None)
    assert sandbox.find_level() == "bubblewrap"


def test_a_level_is_tried_before_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox.why_unavailable.__wrapped__("bubblewrap") == "bwrap is not installed"
    assert sandbox.why_unavailable.__wrapped__("namespaces") == "setpriv is not installed"
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no permission >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    assert sandbox.why_unavailable.__wrapped__("bubblewrap") == "the sandbox did not start: no permission"
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 7\n")
    assert sandbox.why_unavailable.__wrapped__("bubblewrap") == "the sandbox did not start: exit code 7"


@pytest.mark.parametrize(
    ("code", "tests", "status", "reason"),
    [
        ("def f(): return 1", "assert f() == 1", "passed", ""),
        ("def f(): return 1", "assert f() == 2, 'one'", "failed", "AssertionError: one"),
        ("def f(): return 1", "def check():\n    assert f() == 2\ncheck()", "failed", "AssertionError: assert f() =="),
        ("def f(:", "", "failed", "SyntaxError"),
        ("import sys; sys.exit(0)", "assert False", "failed", "SystemExit"),
        ("import os; os._exit(0)", "assert False", "failed", "exited with code 0"),
        ("import os\nif os.fork(): os._exit(0)", "pass", "failed", "exited with code 0"),
        ("input()", "", "failed", "EOFError"),
        ("if __name__ == '__main__': raise ValueError", "", "passed", ""),
        ("raise ValueError(chr(0xD800))", "", "failed", "ValueError: ?"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "", "failed", "E: (no text)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "", "killed", "SIGSEGV"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'", "assert P(1).x == 1", "passed", ""),
    ],
)
def test_verdicts(code: str, tests: str, status: str, reason: str, level: str) -> None:
    verdict = run(code, tests, level=level)
    assert (verdict.status, verdict.level) == (status, level)
    assert reason in verdict.reason
    assert verdict.passed == (status == "passed")


VALUES = (
    "[None, True, -3, 10**5000, 1.5, float('inf'), 'a\\ud800\\n', b'\\xff', 1j, (1, (2,)), {1: [2], (3,): {4}}, "
    "frozenset({5}), range(3)]"
)

NODES = """
class Node:
    def __init__(self, value): self.value, self.left = value, None
    def __eq__(self, other): return self.value == other.value
def total(node): return node.value + total(node.left) if node else 0
"""
TREE = """
root = Node(1)
root.left = Node(2)
root.left.left = Node(value=3)
assert total(root) == 6
assert root.left == root.left and root.left != root and len({root, root}) == 1
assert Node(5) == Node(5) and Node(5) != Node(6) and Node(5) != 5
"""
SIZED = """
class S:
    def __len__(self): return 2
    def __getitem__(self, i): return 10 * i
    def __str__(self): return "S!"
"""


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (f"def f(): return {VALUES}", f"x, y = f(), {VALUES}\nassert x == y\nassert repr(x[4:]) == repr(y[4:])"),
        ("def f(x): return x", f"assert f({VALUES}) == {VALUES}"),
        ("from collections import *\ndef f(): return Counter('aab'), deque([1]), OrderedDict(a=1), defaultdict(int)",
         "from collections import *\nassert f() == (Counter(a=2, b=1), deque([1]), OrderedDict(a=1), {})"),
        ("class I(int):\n    def __eq__(self, other): return False\ndef f(): return I(2)", "assert f() == 2"),
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]\nassert 2 in f(3)"),
        (NODES, TREE),
        (SIZED, "s = S()\nassert (len(s), s[2], str(s), bool(s)) == (2, 20, 'S!', True)"),
        ("def f(): raise KeyError('a')", "try:\n    f()\nexcept KeyError:\n    pass\nelse:\n    assert False"),
        ("def f(a, *, operation): return a - operation", "assert f(a=5, operation=3) == 2"),
        ("import math", "assert math.isclose(0.1 + 0.2, 0.3)"),
    ],
)  # fmt: skip
def test_values_and_objects_cross_between_program_and_tests(code: str, tests: str) -> None:
    assert run(code, tests).reason == ""


def test_arguments_are_copies() -> None:
    """A program that empties its argument does not change what the tests compare with."""
    cheat = "def f(values):\n    values.clear()\n    return []"
    assert not run(cheat, "values = [2, 1]\nassert f(values) == sorted(values)").passed


def test_names_that_the_program_has_to_define_may_be_built_in() -> None:
    code, tests = "def sum(a, b): return a + b", "assert sum(1, 2) == 3"
    assert run_tests([Candidate(code, tests, ("sum",))], allow_execution=True, level=BEST_LEVEL)[0].passed
    assert not run(code, tests).passed


def test_a_function_of_the_tests_is_not_supported() -> None:
    assert "pass a function to the program" in run("def f(g): return g()", "assert f(lambda: 1) == 1").reason


TESTS = "assert f(1) == 2\nassert abs(f(2) - 4.5) < 1e-6\nassert all(map(f, [3]))"
WRONG = "\ndef f(x): return 0"
# Writes to all files of the process, in case one of them leads to the verdict.
SHOUT = """
import os
def shout(text):
    for file in range(256):
        try: os.write(file, text.encode())
        except OSError: pass
"""
FORGERIES = {
    "exec": "import builtins\nbuiltins.exec = lambda *a: None" + WRONG,
    "compile": "import builtins\nold = compile\nbuiltins.compile = lambda *a: old('', 'x', 'exec')" + WRONG,
    "built-in functions": "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.all = lambda x: True" + WRONG,
    "own functions": "def abs(x): return 0\ndef all(x): return True" + WRONG,
    "assertions": "import builtins\nbuiltins.AssertionError = Warning" + WRONG,
    "frames": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n    frame.f_globals.clear()\n    frame = frame.f_back"
        + WRONG
    ),
    "trace": (
        "import sys\ndef trace(frame, event, arg):\n    try: frame.f_lineno += 1\n    except Exception: pass\n"
        "    return trace\nsys.settrace(trace)" + WRONG
    ),
    "memory": (
        SHOUT + "import gc\ndef f(x):\n    for one in gc.get_objects():\n        if isinstance(one, dict):\n"
        "            for word in [str(v) for v in one.values() if isinstance(v, str | int)][:50]:\n"
        "                shout('{\"passed\": true, \"nonce\": \"%s\"}\\n' % word[:80])\n    return 0"
    ),
    "fake verdict": SHOUT + "shout('{\"passed\": true}\\n')\ndef f(x): shout('{\"passed\": true}\\n')",
    "fake replies": SHOUT + "shout(''.join('[%d, null]\\n' % n for n in range(99)))" + WRONG,
    "modules": "import sys, types\nfor name in list(sys.modules): sys.modules[name] = types.ModuleType(name)" + WRONG,
    "_exit": "import os\ndef f(x): os._exit(0)",
    "exit": "def f(x): raise SystemExit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit",
    "end of iteration": "def f(x):\n    if x == 3: raise StopIteration\n    return {1: 2, 2: 4.5}[x]",
    "equal to all": "class A:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return A()",
    "any number": (
        "class A(int):\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0\n"
        "    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__\n    def __hash__(self): return 2\n"
        "def f(x): return A(7)"
    ),
    "any difference": (
        "class A:\n    def __sub__(self, other): return 0\n    __rsub__ = __sub__\n    def __abs__(self): return 0\n"
        "def f(x): return 2 if x == 1 else A()"
    ),
    "pickle": (
        "import os\nclass A:\n    def __reduce__(self): return (os._exit, (0,))\ndef f(x): return [A()]"
    ),
    "class": "class A:\n    __class__ = int\n    def __index__(self): return 2\ndef f(x): return A()",
}  # fmt: skip


@pytest.mark.parametrize("attack", FORGERIES)
def test_a_pass_cannot_be_forged(attack: str) -> None:
    assert not run(FORGERIES[attack], TESTS, Limits(cpu_seconds=1)).passed


def test_the_attacked_tests_can_be_passed() -> None:
    assert run("def f(x): return {1: 2, 2: 4.5, 3: 1}[x]", TESTS).passed


@pytest.mark.parametrize("reply", ["[3, null, 5, 6]", "[0, null]", "{}", "null", "[" * 100_000, "\\xff", "[1e999, 2]"])
def test_a_broken_reply_fails_even_if_the_tests_catch_everything(reply: str) -> None:
    """After it, nothing that the program says counts."""
    tests = "try:\n    f()\nexcept BaseException:\n    pass"
    broken = SHOUT + f"def f():\n    shout('{reply}\\n')"
    assert run(broken, tests).status == "failed"


@pytest.mark.parametrize(
    "value",
    ['["object", "x"]', '["object", -1, 2]', '["list"', '{"a": 1}', '["set", ["list"]]', '["eval", "1"]', '[[], 1]',
     '["range", 1, 2, 0]', '["dict", 1]', '["bytes", 5]', '[]'],
)  # fmt: skip
def test_a_hostile_value_is_an_error_of_the_program(value: str) -> None:
    code = f"import json\nold = json.dumps\njson.dumps = lambda reply: '[%d, {value}]' % reply[0]"
    verdict = run(code, "assert True")
    assert verdict.status == "failed", verdict


def test_a_huge_reply_does_not_end_the_grader() -> None:
    verdict = run("def f(): return 'x' * (300 << 20)", "assert f() == 1", Limits(memory=1 << 29))
    assert verdict.status in ("failed", "killed")


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(99)"])
def test_an_endless_loop_ends(code: str, level: str) -> None:
    assert run(code, limits=QUICK, level=level).status == "timed out"


def test_cpu_time_is_limited_separately(level: str) -> None:
    verdict = run("while True: pass", limits=Limits(seconds=60.0, cpu_seconds=1), level=level)
    assert (verdict.status, verdict.reason) == ("timed out", "used 1 seconds of CPU time")


def test_ten_gigabytes_are_refused(level: str) -> None:
    verdict = run("x = bytearray(10 << 30)", level=level)
    assert (verdict.status, verdict.reason.rstrip(": ")) == ("failed", "MemoryError")


def test_a_fork_bomb_is_contained(level: str) -> None:
    """It reaches its limit, and a candidate that runs at the same time is not affected."""
    bomb = Candidate("import os\nwhile True:\n    os.fork()", "")
    verdicts = run_tests([bomb, Candidate("", "")], allow_execution=True, jobs=2, limits=QUICK, level=level)
    assert [verdict.passed for verdict in verdicts] == [False, True]
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0


COUNT = """
import os, time
def count():
    made = 0
    try:
        while made < 200:
            if os.fork() == 0: time.sleep(30)
            made += 1
    except BlockingIOError: pass
    return made
"""


def test_processes_are_counted(strong: str) -> None:
    verdict = run(COUNT, "assert 1 <= count() <= 16 + 3", level=strong)
    assert verdict.passed, verdict


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("started", "w").close()
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", {mark!r}])
    os._exit(0)
while not os.path.exists("started"): time.sleep(0.01)
"""


def test_nothing_outlives_a_run(strong: str) -> None:
    """Not even a daemon, which has its own session and whose parent has ended."""
    mark = secrets.token_hex(16)
    assert run(DAEMON.format(mark=mark), level=strong).passed
    _wait_until(lambda: not _is_running(mark))


def test_nothing_outlives_the_grader(strong: str) -> None:
    mark = secrets.token_hex(16)
    grader = f"""
from foretell.evaluation.sandbox.sandbox import Candidate, run_tests
run_tests([Candidate({DAEMON.format(mark=mark) + "time.sleep(600)"!r}, "")], allow_execution=True, level={strong!r})
"""
    with subprocess.Popen([sys.executable, "-c", grader]) as process:
        _wait_until(lambda: _is_running(mark))
        process.kill()
    _wait_until(lambda: not _is_running(mark))


def _wait_until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_running(mark: str) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if mark.encode() in (process / "cmdline").read_bytes():
                return True
    return False


ATTEMPTS = [
    "open({0!r}, 'a').write('x')",
    "print(open({0!r}).read())",
    "import os; os.truncate({0!r}, 0)",
    "import os; os.remove({0!r})",
    "import os; os.rename({0!r}, 'mine')",
    "import os; os.chmod({0!r}, 0)",
    "import os; os.symlink('/', {0!r} + '2')",
    "import os; os.mkdir({0!r} + '2')",
    "import os; os.link({0!r}, 'mine')",
    "open('/etc/shadow').read()",
    "open('/proc/1/environ').read()",
    "open('/usr/lib/x', 'w')",
    "open('/x', 'w')",
    "open('/dev/shm/x', 'w')",
    "import os; os.mkdir('/dev/x')",
    "import os; os.memfd_create('x')",
    "import os; os.chroot('.')",
    "import os; os.mknod('x', 0o60666, 0x801)",
    "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'/work', b'tmpfs', 0, None) == 0",
    "import ctypes; assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0",
    "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
]
TRY = """
open("inside", "w").write("x")
def reach(attempt):
    try: exec(attempt, {})
    except (OSError, AssertionError): return False
    return True
"""


def test_nothing_outside_is_reached(outside: Path, strong: str) -> None:
    target = outside / "precious"
    target.write_text("kept")
    target.chmod(0o666)
    attempts = [attempt.format(str(target)) for attempt in ATTEMPTS]
    reached = f"[attempt for attempt in {attempts} if reach(attempt)]"
    tests = f"assert reach('open(0)')\nreached = {reached}\nassert not reached, str(reached)"
    verdict = run(TRY, tests, level=strong)
    assert verdict.passed, verdict
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("kept", 0o666)
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_only_the_interpreter_is_visible(strong: str) -> None:
    shown = run("import os; print(os.listdir('.'), os.getcwd(), *sorted(os.listdir('/')))", level=strong).output.split()
    writable = "[p for p in os.listdir('/') if not os.statvfs('/' + p).f_flag & os.ST_RDONLY and p != 'work']"
    assert run(f"import os; assert {writable} == [], {writable}", level=strong).reason == ""
    expected = {Path(path).parts[1] for path in sandbox._shared_files().values()} | {"work", "old"}
    assert shown[:2] == ["[]", "/work"]
    assert set(shown[2:]) <= expected


def test_capabilities_are_given_up(level: str) -> None:
    """At the level "limits", root keeps the right to read: the interpreter may be in root's home."""
    code = """
import ctypes, struct
header, found = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
ctypes.CDLL(None).capget(header, found)
def capabilities(): return list(struct.unpack("6I", found.raw))
"""
    kept = 4 if level == "limits" and os.getuid() == 0 else 0
    verdict = run(code, f"assert capabilities() == [{kept}, {kept}, 0, 0, 0, 0], capabilities()", level=level)
    assert verdict.passed, verdict


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_root_is_given_up(level: str) -> None:
    code = "import os\nassert 0 not in os.getresuid() + os.getresgid()\nassert os.getgroups() == []\nos.setuid(0)"
    assert run(code, level=level).reason == "PermissionError: [Errno 1] Operation not permitted"
    assert os.getuid() == os.geteuid() == 0


def test_there_is_no_network(strong: str, outside: Path) -> None:
    with (
        socket.socket() as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX) as nameless,
    ):
        server.bind(("127.0.0.1", 0))
        server.listen()
        listener.bind(("127.0.0.1", 0))
        local.bind(str(outside / "socket"))
        local.listen()
        (outside / "socket").chmod(0o777)
        abstract = f"\0{secrets.token_hex(8)}"  # has a name but no file
        nameless.bind(abstract)
        nameless.listen()
        attempts = [
            f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=1)",
            f"socket.socket(socket.AF_UNIX).connect({str(outside / 'socket')!r})",
            f"socket.socket(socket.AF_UNIX).connect({abstract!r})",
            "socket.socket(40, socket.SOCK_STREAM)",  # VSOCK, which leads out of a virtual machine
            f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {listener.getsockname()!r})",
        ]
        code = f"import socket\nsocket.socketpair()\nsocket.socket(socket.AF_UNIX).bind('own')\n{TRY}"
        tests = f"reached = [one for one in {attempts} if reach('import socket; ' + one)]\nassert not reached, reached"
        assert run(code, tests, level=strong).reason == ""
        for waiting in (listener, local, nameless):
            waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(1)
        for waiting in (local, nameless):
            with pytest.raises(BlockingIOError):
                waiting.accept()


NESTED = "import os\nfor _ in range(1000):\n    os.mkdir('d')\n    os.chdir('d')\n"


def test_nested_folders_and_links_are_cleaned_up(level: str, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, temporary = outside / "precious", outside / "temporary"
    target.write_text("kept")
    target.chmod(0o640)
    temporary.mkdir()
    temporary.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    links = f"os.mkdir('closed'); os.symlink({str(target)!r}, 'closed/link'); os.symlink('..', 'up'); "
    verdict = run(f"import os; {links}os.chmod('closed', 0o500)\n{NESTED}", level=level)
    assert verdict.passed, verdict
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(temporary.iterdir()) == []


def test_the_disk_is_limited(strong: str) -> None:
    """Total size and number of files, not only the size of one file."""
    code = """
def fill(size, made=0):
    try:
        while made < 5000:
            with open(f"{size}-{made}", "wb") as file: file.write(bytes(size))
            made += 1
    except OSError as error:
        return made, error.errno
"""
    limits = Limits(disk_bytes=1 << 20, files=100)
    for size, most in ((1 << 18, 4), (0, 100)):
        verdict = run(code, f"m, e = fill({size})\nassert 0 < m <= {most} and e == {errno.ENOSPC}", limits, strong)
        assert verdict.passed, verdict


def test_output_is_cut_and_cannot_fill_the_disk(level: str) -> None:
    limits = Limits(seconds=30.0, file_bytes=100_000, output=50)
    verdict = run("while True: print('x' * 1000)", limits=limits, level=level)
    assert verdict.status == "failed"
    assert len(verdict.output) == 50
    assert run("print('x')", limits=Limits(output=0), level=level).output == ""
    assert run("open('big', 'wb').write(b'x' * 200_000)", limits=limits, level=level).status == "failed"


def test_the_environment_is_empty_and_sets_have_one_order(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "1")
    code = "import os; print(sorted(os.environ)); print([*map(str, {'a', 'b', 'c', 'd'})])"
    shown = run(code, level=level).output
    assert "HOME" in shown
    assert "SECRET_OF_MINE" not in shown
    assert shown == run(code, level=level).output


def test_verdicts_come_in_order() -> None:
    candidates = [Candidate("", "assert False" if place % 2 else "") for place in range(6)]
    verdicts = run_tests(candidates, allow_execution=True, jobs=3, level=BEST_LEVEL)
    assert [verdict.passed for verdict in verdicts] == [True, False] * 3

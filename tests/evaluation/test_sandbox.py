"""The sandbox runs untrusted code, returns a verdict and prevents harm."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretell.errors import RequestError
from foretell.evaluation.sandbox.sandbox import Candidate, Limits, Verdict, run_tests

QUICK = Limits(seconds=1.0)


def run(code: str, tests: str = "", limits: Limits = QUICK) -> Verdict:
    return run_tests([Candidate(code, tests)], allow_execution=True, limits=limits)[0]


@pytest.fixture(scope="module")
def locks() -> Verdict:
    """The restrictions that this system supports."""
    return run("")


def test_running_code_has_to_be_allowed() -> None:
    with pytest.raises(RequestError, match="allow_execution=True"):
        run_tests([Candidate("", "")], allow_execution=False)
    with pytest.raises(RequestError, match="jobs"):
        run_tests([], allow_execution=True, jobs=0)
    with pytest.raises(RequestError, match="seconds"):
        Limits(seconds=0)


@pytest.mark.parametrize(
    ("code", "tests", "status", "reason"),
    [
        ("def f(): return 1", "assert f() == 1", "passed", ""),
        ("def f(): return 1", "assert f() == 2, 'one'", "failed", "AssertionError: one"),
        (
            "def f(): return 1",
            "def check():\n    assert f() == 2\ncheck()",
            "failed",
            "AssertionError: assert f() == 2",
        ),
        ("def f(:", "", "failed", "SyntaxError"),
        ("import sys; sys.exit(0)", "assert False", "failed", "SystemExit"),
        ("import os; os._exit(0)", "assert False", "failed", "exited with code 0"),
        ("import os\nif os.fork(): os._exit(0)", "pass", "failed", "exited with code 0"),
        ("input()", "", "failed", "EOFError"),
        ("if __name__ == '__main__': raise ValueError", "", "passed", ""),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", "", "failed", "E: (no text)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "", "killed", "SIGSEGV"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'", "assert P(1).x == 1", "passed", ""),
        ("print({'a', 'b', 'c'})", "", "passed", ""),
    ],
)
def test_verdicts(code: str, tests: str, status: str, reason: str) -> None:
    verdict = run(code, tests, Limits(seconds=5.0))
    assert verdict.status == status
    assert reason in verdict.reason
    assert verdict.passed == (status == "passed")


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(99)"])
def test_an_endless_loop_ends(code: str) -> None:
    assert run(code).status == "timed out"


def test_cpu_time_is_limited_separately() -> None:
    verdict = run("while True: pass", limits=Limits(seconds=60.0, cpu_seconds=1))
    assert (verdict.status, verdict.reason) == ("timed out", "used 1 seconds of CPU time")


def test_ten_gigabytes_are_refused() -> None:
    verdict = run("x = bytearray(10 << 30)", limits=Limits(seconds=4.0))
    assert (verdict.status, verdict.reason.rstrip(": ")) == ("failed", "MemoryError")


def test_a_fork_bomb_is_contained() -> None:
    """It reaches its limit, and a candidate that runs at the same time is not affected."""
    bomb = Candidate("import os\nwhile True:\n    os.fork()", "")
    verdicts = run_tests([bomb, Candidate("", "")], allow_execution=True, jobs=2, limits=Limits(seconds=1.0))
    assert not verdicts[0].passed
    assert verdicts[1].passed
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0


def test_nothing_outlives_a_run(tmp_path: Path, locks: Verdict) -> None:
    if not locks.isolated:
        pytest.skip("this system grants no namespaces")
    stray = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint(os.getcwd())"
    started = time.monotonic()
    verdict = run(stray, limits=Limits(seconds=20.0))
    assert verdict.passed
    assert time.monotonic() - started < 15
    assert not Path(verdict.output.strip()).exists()


@pytest.mark.parametrize(
    "attempt",
    [
        "open({0!r}, 'a').write('x')",
        "import os; os.truncate({0!r}, 0)",
        "import os; os.remove({0!r})",
        "import os; os.rename({0!r}, 'mine')",
        "import os; os.symlink('/', {0!r} + '2')",
        "import os; os.mkdir({0!r} + '2')",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'open(%r, \"w\")' % {0!r}], check=True)",
    ],
)
def test_a_write_outside_is_contained(attempt: str, tmp_path: Path, locks: Verdict) -> None:
    if not locks.contained:
        pytest.skip("this system grants neither mount namespaces nor Landlock")
    target = tmp_path / "precious"
    target.write_text("kept")
    for path, mode in ((target, 0o666), (tmp_path, 0o777)):
        path.chmod(mode)  # so that only the sandbox prevents the write
    verdict = run("open('inside', 'w').write('x')\n" + attempt.format(str(target)), limits=Limits(seconds=4.0))
    assert verdict.status == "failed"
    assert target.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_there_is_no_network(locks: Verdict) -> None:
    if not locks.isolated:
        pytest.skip("this system grants no namespaces")
    with socket.socket() as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        server.bind(("127.0.0.1", 0))
        server.listen()
        listener.bind(("127.0.0.1", 0))
        tcp, udp = server.getsockname()[1], listener.getsockname()[1]
        verdict = run(f"import socket; socket.create_connection(('127.0.0.1', {tcp}), timeout=1)")
        assert verdict.status == "failed"
        run(f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))")
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(1)


def test_output_is_cut_and_cannot_fill_the_disk() -> None:
    verdict = run("while True: print('x' * 1000)", limits=Limits(seconds=5.0, file_bytes=100_000, output=50))
    assert verdict.status == "failed"
    assert len(verdict.output) == 50
    big = run("open('big', 'wb').write(b'x' * 200_000)", limits=Limits(seconds=5.0, file_bytes=100_000))
    assert big.status == "failed"


def test_the_environment_is_empty_and_sets_have_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "1")
    shown = run("import os; print(sorted(os.environ)); print([*map(str, {'a', 'b', 'c', 'd'})])").output
    assert "SECRET_OF_MINE" not in shown
    assert shown == run("import os; print(sorted(os.environ)); print([*map(str, {'a', 'b', 'c', 'd'})])").output


def test_root_is_given_up() -> None:
    assert run("import os; assert 0 not in os.getresuid() + os.getresgid()", limits=Limits(seconds=5.0)).passed
    assert os.getuid() == os.geteuid()


def test_verdicts_come_in_order() -> None:
    candidates = [Candidate("", "assert False" if place % 2 else "") for place in range(6)]
    verdicts = run_tests(candidates, allow_execution=True, jobs=3)
    assert [verdict.passed for verdict in verdicts] == [True, False] * 3

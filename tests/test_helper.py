"""A helper process: threads, forks, interrupts, and what happens when it dies or takes too long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from foretell import helper
from foretell.helper import HelperProcess

# Doubles numbers; dies at "die", waits at "wait", answers half a line at "half".
SCRIPT = """
import sys, time
for line in sys.stdin:
    if line == "die\\n":
        sys.exit()
    if line == "half\\n":
        print(end="1", flush=True)
        sys.exit()
    if line == "wait\\n":
        time.sleep(600)
    print(2 * int(line), flush=True)
"""


@pytest.fixture
def process() -> Iterator[HelperProcess]:
    made = HelperProcess(lambda: [sys.executable, "-I", "-S", "-c", SCRIPT])
    yield made
    made.close()


def double(process: HelperProcess, number: int) -> int:
    return int(process.ask(f"{number}\n".encode()) or -1)


def test_one_process_answers_all_questions(process: HelperProcess) -> None:
    assert [double(process, number) for number in range(3)] == [0, 2, 4]
    first = process._process
    assert double(process, 5) == 10
    assert process._process is first


@pytest.mark.parametrize("question", [b"die\n", b"half\n"])
def test_a_process_that_dies_is_replaced(process: HelperProcess, question: bytes) -> None:
    assert process.ask(question) is None
    assert double(process, 4) == 8
    running: Any = process._process
    running.kill()
    running.wait()
    assert double(process, 4) == 8, "it died between two questions"
    running = process._process
    running.kill()
    running.wait()
    running.poll = lambda: None  # unnoticed until the pipe breaks
    assert process.ask(b"4\n") is None
    assert double(process, 4) == 8


@pytest.mark.timeout(60)
def test_a_question_has_a_time_limit(process: HelperProcess) -> None:
    before = threading.active_count()
    assert process.ask(b"wait\n", seconds=0.5) is None
    assert process.ask(b"3\n", seconds=50) == b"6\n"
    assert threading.active_count() <= before + 1, "timers are cancelled; one may still be ending"


def test_threads_take_turns(process: HelperProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: double(process, number), range(200))) == [*range(0, 400, 2)]


def test_an_interrupt_leaves_no_answer_behind(process: HelperProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(running: Any, question: bytes) -> bytes:
        running.stdin.write(question)
        running.stdin.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(helper, "_exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.ask(b"1\n")
    assert double(process, 2) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_its_own_process() -> None:
    """Otherwise parent and child would read each other's answers."""
    code = f"""
import os, sys
from foretell.helper import HelperProcess
one = HelperProcess(lambda: [sys.executable, "-I", "-S", "-c", {SCRIPT!r}])
assert one.ask(b"1\\n") == b"2\\n"
first = one._process
child = os.fork()
if child == 0:
    assert one._process is None
    assert one.ask(b"2\\n") == b"4\\n" and one._process.pid != first.pid
    one.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert one.ask(b"3\\n") == b"6\\n" and one._process is first
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_cannot_start_is_an_error() -> None:
    with pytest.raises(OSError, match="nowhere"):
        HelperProcess(lambda: ["/nowhere/python"]).ask(b"1\n")

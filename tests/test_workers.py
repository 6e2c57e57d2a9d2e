"""Worker processes: how each of them may end, and what the error says."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial

import pytest

from foretell.errors import ForetellError, StorageError
from foretell.workers import run_workers

KEPT = "all is kept: run the same command again to resume"


def _work(ends: dict[int, str], worker: int) -> None:
    end = ends.get(worker)
    if end == "kill":
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set()), "Ctrl-C would show a traceback"
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "exit":
        os._exit(3)
    if end == "error":
        raise StorageError("a bad file")
    if end == "bug":
        raise ZeroDivisionError("a bug")
    if end == "wait":
        time.sleep(1000)


@pytest.mark.parametrize(
    ("ends", "error", "message"),
    [
        (
            {0: "bug", 1: "kill"},
            ForetellError,
            rf"worker 2 of 2 \(pid \d+\) was killed by signal 9 \(SIGKILL\), perhaps for lack of memory; {KEPT}",
        ),
        ({0: "wait", 1: "exit"}, ForetellError, rf"worker 2 of 2 \(pid \d+\) ended with exit code 3; {KEPT}"),
        ({1: "error"}, StorageError, "^a bad file$"),
        ({1: "bug"}, RuntimeError, rf"(?s)worker 2 of 2 \(pid \d+\) failed; {KEPT}\n.*ZeroDivisionError: a bug"),
    ],
)
def test_a_failed_worker_is_named(ends: dict[int, str], error: type[Exception], message: str) -> None:
    polled: list[int] = []

    def poll() -> None:
        polled.append(1)
        if "wait" not in ends.values():
            for child in multiprocessing.active_children():
                child.join()  # so that both have ended when errors are looked for

    with pytest.raises(error, match=message):
        run_workers(partial(_work, ends), 2, "all is kept", poll)
    assert polled

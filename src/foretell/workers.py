"""Run a function in several processes, which end together with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from foretell import errors
from foretell.errors import ForetellError

INTERVAL = 0.2  # seconds between two calls of `poll`


def run_workers(work: Callable[[int], None], count: int, kept: str, poll: Callable[[], None] = lambda: None) -> None:
    """Run `work(0)` to `work(count - 1)` in processes and wait for them; the first failure ends all of them.

    `work` must be picklable. `poll` is called while they run and once after they end. An error names the worker, how it
    ended, and what is `kept` for the next run.
    """
    context = multiprocessing.get_context("spawn")
    running: list[tuple[SpawnProcess, Connection]] = []
    try:
        for worker in range(count):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run_worker, args=(work, worker, theirs), daemon=True)
            with _interrupts_blocked():
                process.start()
                running.append((process, ours))
            theirs.close()
        while alive := [process.sentinel for process, _ in running if process.is_alive()]:
            wait(alive, INTERVAL)
            poll()
            _raise_error(running, kept)
        poll()
        _raise_error(running, kept)
    finally:
        for process, _ in running:
            process.terminate()
        for process, _ in running:
            process.join()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all of them: the parent ends them."""
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _raise_error(running: list[tuple[SpawnProcess, Connection]], kept: str) -> None:
    """Raise an error if a worker has failed. One that was killed comes first: others may fail as a result."""
    failed = [
        (process.exitcode, number) for number, (process, _) in enumerate(running) if process.exitcode not in (None, 0)
    ]
    if not failed:
        return
    code, number = min(failed)
    process, pipe = running[number]
    resume = f"{kept}: run the same command again to resume"
    who = f"worker {number + 1} of {len(running)} (pid {process.pid})"
    if code < 0:
        why = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
        raise ForetellError(f"{who} was killed by signal {-code} ({signal.Signals(-code).name}){why}; {resume}")
    try:
        kind, message = pipe.recv()
    except EOFError:  # it did not come to send anything
        raise ForetellError(f"{who} ended with exit code {code}; {resume}") from None
    if kind is not None:
        raise getattr(errors, kind, ForetellError)(message)
    raise RuntimeError(f"{who} failed; {resume}\n{message}")


def _run_worker(work: Callable[[int], None], worker: int, pipe: Connection) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        work(worker)
    except ForetellError as error:
        pipe.send((type(error).__name__, str(error)))
        raise SystemExit(1) from None
    except Exception:  # noqa: BLE001  the parent raises it
        pipe.send((None, traceback.format_exc()))
        raise SystemExit(1) from None


def _exit_with_parent() -> None:
    """End this process when its parent ends: it would otherwise write to files that a new run writes to."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

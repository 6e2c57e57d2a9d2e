"""Run work in several processes: on this machine, where they end with their parent, or in a pool on other machines."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol, TypeVar

from foretell import errors
from foretell.errors import ForetellError

INTERVAL = 0.2  # seconds between two calls of `poll`
MAX_BATCHES = 8  # maximum batches per chunk; then it is the next recipe's turn
MIN_CHUNKS = 4  # minimum per worker, if there are enough batches

Held = TypeVar("Held")
Held_co = TypeVar("Held_co", covariant=True)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Needs:
    """What one worker of a pool occupies on its machine."""

    cpus: int = 1
    gpus: int = 0


class Opener(Protocol[Held_co]):
    """How a worker opens what its tasks are called with. Picklable; equal openers open the same."""

    @property
    def needs(self) -> Needs: ...

    def __call__(self) -> Held_co: ...


class Pool(Protocol):
    """Workers on other machines. A task whose worker is lost runs again on another one."""

    def size(self, needs: Needs) -> int:
        """Return the number of workers that will be used, if there is enough work."""

    def run(
        self, opener: Opener[Held], count: int, task: Callable[[int], Callable[[Held], Result]]
    ) -> Iterator[tuple[int, Result]]:
        """Run the tasks `task(0)` to `task(count - 1)`; yields (number, result) in the order in which they finish.

        Tasks are picklable, and are called with what the opener returned on the worker's machine. A ForetellError of
        an opener or a task is raised here.
        """


def chunk_size(examples: int, batch_size: int, workers: int) -> int:
    """Return the examples per chunk: whole batches, few enough that no worker waits long for the last one."""
    batches = -(-examples // batch_size)
    return batch_size * min(MAX_BATCHES, -(-batches // (workers * MIN_CHUNKS)))


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

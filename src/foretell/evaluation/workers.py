"""Run the workers of an evaluation in processes of one thread each, which end together with their parent."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from foretell.errors import ForetellError, RequestError
from foretell.evaluation.records import Record, lines, parts

INTERVAL = 0.2  # seconds between two checks for new results


@dataclass(slots=True)
class ResultReader:
    """Calls `watch` with every result that appears in the result files of a folder."""

    folder: Path
    watch: Callable[[Record], None]
    ends: dict[Path, int] = field(default_factory=dict)

    def skip(self) -> None:
        """Ignore the results that are there already."""
        self.ends = {path: path.stat().st_size for path in parts(self.folder)}

    def read_new(self) -> None:
        for path in parts(self.folder):
            for record, end in lines(path, self.ends.get(path, 0)):
                self.ends[path] = end
                self.watch(record)


def run_workers(work: Callable[[int], None], count: int, folder: Path, watch: Callable[[Record], None]) -> None:
    """Run `work(0)` to `work(count - 1)` in processes and wait for them; the first error ends all of them.

    `work` must be picklable. `watch` is called with each result that a worker writes to `folder`.
    """
    reader = ResultReader(folder, watch)
    reader.skip()
    context = multiprocessing.get_context("spawn")
    running: list[tuple[SpawnProcess, Connection]] = []
    try:
        for worker in range(count):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run_worker, args=(work, worker, theirs), daemon=True)
            process.start()
            theirs.close()
            running.append((process, ours))
        while any(process.is_alive() for process, _ in running):
            time.sleep(INTERVAL)
            reader.read_new()
            _raise_error(running)
        reader.read_new()
        _raise_error(running)
    finally:
        for process, _ in running:
            process.terminate()
            process.join()


def _raise_error(running: list[tuple[SpawnProcess, Connection]]) -> None:
    """Raise RequestError if a worker has failed."""
    for process, pipe in running:
        if process.is_alive() or process.exitcode == 0:
            continue
        raise RequestError(
            pipe.recv()
            if pipe.poll()
            else f"a worker ended with exit code {process.exitcode}; run the same command again to resume"
        )


def _run_worker(work: Callable[[int], None], worker: int, pipe: Connection) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        work(worker)
    except ForetellError as error:
        pipe.send(str(error))
        raise SystemExit(1) from None


def _exit_with_parent() -> None:
    """End this process when its parent ends: it would otherwise write to files that a new run writes to."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

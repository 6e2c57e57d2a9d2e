"""An evaluation shared out over processes of one thread each, which end when the process that started them does."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from foretell.errors import ForetellError, RequestError
from foretell.evaluation.records import lines, parts
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch, work

PAUSE = 0.2  # seconds between two looks at what the workers have written


@dataclass(slots=True)
class Follower:
    """Tells of results that appear in the parts of a folder."""

    folder: Path
    watch: Watch
    ends: dict[Path, int] = field(default_factory=dict)

    def skip(self) -> None:
        self.ends = {path: path.stat().st_size for path in parts(self.folder)}

    def look(self) -> None:
        for path in parts(self.folder):
            for record, end in lines(path, self.ends.get(path, 0)):
                self.ends[path] = end
                self.watch(record)


def share_out(what: Evaluation, watch: Watch) -> None:
    """Run all workers of an evaluation to their end; the first error of one ends the others."""
    follower = Follower(what.out, watch)
    follower.skip()
    context = multiprocessing.get_context("spawn")
    running: list[tuple[SpawnProcess, Connection]] = []
    try:
        for worker in range(what.workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_worker, args=(what, worker, theirs), daemon=True)
            process.start()
            theirs.close()
            running.append((process, ours))
        while any(process.is_alive() for process, _ in running):
            time.sleep(PAUSE)
            follower.look()
            _complain(running)
        follower.look()
        _complain(running)
    finally:
        for process, _ in running:
            process.terminate()
            process.join()


def _complain(running: list[tuple[SpawnProcess, Connection]]) -> None:
    for process, pipe in running:
        if process.is_alive() or process.exitcode == 0:
            continue
        said = (
            pipe.recv() if pipe.poll() else f"a worker ended with exit code {process.exitcode}; run it again to go on"
        )
        raise RequestError(said)


def _worker(what: Evaluation, worker: int, pipe: Connection) -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        work(PreparedEvaluation.prepare(what), worker, lambda _: None)
    except ForetellError as error:
        pipe.send(str(error))
        raise SystemExit(1) from None


def _leave_with_parent() -> None:
    """A worker whose parent was killed would go on writing where a new run already writes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

"""Run cases in worker processes, and judge how each one ends.

A case is a function of a random generator that is seeded with its kind, seed and number, so every case can be repeated.
A worker that crashes, takes too much CPU time or waits forever ends; its case is reported and a new worker goes on.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import NamedTuple

from foretell.errors import ForetellError, show

CPU_SECONDS = 10.0
MEMORY = 2 << 30  # bytes of address space, besides what the process has before
CHUNK = 20  # cases that a worker takes at once
GOOD, REFUSED, FOREIGN, CRASHED, SLOW = "good", "refused", "foreign", "crashed", "slow"
BAD = (FOREIGN, CRASHED, SLOW)

Run = Callable[[Random], None]  # returns after a good result; raises ForetellError if the input is refused
Case = tuple[str, int]  # kind and number


class Limits(NamedTuple):
    """What one case may use."""

    cpu_seconds: float = CPU_SECONDS
    patience: float = 12.0  # times that many seconds may pass by the clock: a case may wait for a pipe without end
    memory: int = MEMORY


class Verdict(NamedTuple):
    """How a case ended."""

    outcome: str
    cause: str = ""  # the class of a refusal; otherwise the error and its place
    details: str = ""  # a traceback
    seconds: float = 0.0  # of CPU time


@contextmanager
def limit_memory(extra: int) -> Iterator[None]:
    """Let this process take only `extra` more bytes; more is a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def judge(run: Run, kind: str, seed: int, number: int, limits: Limits = Limits()) -> Verdict:  # noqa: B008  frozen
    """Run one case in this process. It is slow if it took too long together with the processes that it started."""
    start = sum(os.times()[:4])
    outcome, cause, details = GOOD, "", ""
    try:
        with warnings.catch_warnings(), limit_memory(limits.memory):
            warnings.simplefilter("ignore")
            run(Random(f"{kind}-{seed}-{number}"))
    except ForetellError as error:
        outcome, cause = REFUSED, type(error).__name__
        _ = str(error)  # the message must be printable too
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a panic in Rust and SystemExit are no Exceptions
        outcome, cause, details = FOREIGN, _describe(error), traceback.format_exc(limit=-30) + _show_input(error)
    seconds = sum(os.times()[:4]) - start
    if seconds > limits.cpu_seconds:
        outcome, cause = SLOW, "too much CPU time"
    return Verdict(outcome, cause, details, seconds)


def _describe(error: BaseException) -> str:
    """Return the class of an error and the last place in our source, or in the fuzzer, that it passed."""
    places = traceback.extract_tb(error.__traceback__)
    ours = [one for one in places if f"{os.sep}foretell{os.sep}" in one.filename] or places
    return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"


def _show_input(error: BaseException) -> str:
    """Return the variables of the case's own function, shortened."""
    at = error.__traceback__ and error.__traceback__.tb_next
    return "".join(f"  {name} = {show(value, 300)}\n" for name, value in (at.tb_frame.f_locals if at else {}).items())


def run_cases(
    kinds: Mapping[str, Run], cases: Sequence[Case], seed: int, limits: Limits, workers: int = 2
) -> dict[Case, Verdict]:
    """Run all cases in `workers` processes. Prints progress and every bad case."""
    pending, verdicts = deque(cases), dict[Case, Verdict]()
    started = shown = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        active: dict[Connection, Worker] = {}
        while pending or active:
            while pending and len(active) < workers:
                worker = Worker(kinds, seed, limits, Path(folder))
                active[worker.answers] = worker
            for ready in wait(list(active), timeout=1.0):
                worker = active[ready]  # type: ignore[index]
                for case, verdict in worker.collect(pending):
                    verdicts[case] = verdict
                    if verdict.outcome in BAD:
                        print(f"\n{verdict.outcome}: {verdict.cause}\n  {command(case, seed)}", flush=True)
                if worker.ended:
                    del active[worker.answers]
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                print(f"{len(verdicts):,} of {len(cases):,} cases, {shown - started:.0f} s", flush=True)
    return verdicts


def command(case: Case, seed: int) -> str:
    """Return the command that repeats a case."""
    return f"python -m tests.fuzz --kind {case[0]} --seed {seed} --only {case[1]}"


class Worker:
    """A process that runs one case after the other."""

    def __init__(self, kinds: Mapping[str, Run], seed: int, limits: Limits, folder: Path) -> None:
        context = multiprocessing.get_context("fork")  # a new worker starts at once, with everything prepared
        self.answers, theirs = context.Pipe()
        self.running: deque[Case] = deque()
        self.ended = False
        handle, self.log = tempfile.mkstemp(dir=folder)
        self.process = context.Process(target=_work, args=(theirs, kinds, seed, limits, handle), daemon=True)
        self.process.start()
        theirs.close()
        os.close(handle)

    def collect(self, pending: deque[Case]) -> Iterator[tuple[Case, Verdict]]:
        """Yield what the worker has to say; give it new cases, or put back those of a worker that ended."""
        try:
            message = self.answers.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            self.ended = True
            if self.running:
                yield self.running.popleft(), self._explain_end()
            pending.extendleft(reversed(self.running))
            return
        if message is not None:
            yield self.running.popleft(), message
        if not self.running:
            self.running.extend(pending.popleft() for _ in range(min(CHUNK, len(pending))))
            self.answers.send(list(self.running) or None)

    def _explain_end(self) -> Verdict:
        code, written = self.process.exitcode or 0, Path(self.log).read_text(errors="replace")
        ours = [line.strip() for line in written.splitlines() if f"{os.sep}foretell{os.sep}" in line]
        at = f" at {ours[0]}" if ours else ""
        if code == -signal.SIGPROF:
            return Verdict(SLOW, f"too much CPU time{at}", written)
        if "Timeout (" in written:
            return Verdict(SLOW, f"waits without end{at}", written)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Verdict(CRASHED, f"{how}{at}", written)


def _work(pipe: Connection, kinds: Mapping[str, Run], seed: int, limits: Limits, log: int) -> None:
    """Run in a worker. The kernel's own clocks end it, since a signal handler in Python waits for C code to return."""
    os.dup2(log, sys.stderr.fileno())
    os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.enable(log)
    faulthandler.register(signal.SIGPROF, log, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send(None)
    while (cases := pipe.recv()) is not None:
        for kind, number in cases:
            os.ftruncate(log, 0)
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
            faulthandler.dump_traceback_later(limits.patience * limits.cpu_seconds, exit=True, file=log)
            verdict = judge(kinds[kind], kind, seed, number, limits)
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send(verdict)


def print_summary(verdicts: Mapping[Case, Verdict], seed: int) -> int:
    """Print a table of the kinds and the causes of bad cases. Returns 1 if there is one, otherwise 0."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    refusals: dict[str, Counter[str]] = defaultdict(Counter)
    longest: dict[str, float] = defaultdict(float)
    causes: dict[str, list[Case]] = defaultdict(list)
    for case, verdict in verdicts.items():
        kind = case[0]
        outcomes[kind][verdict.outcome] += 1
        longest[kind] = max(longest[kind], verdict.seconds)
        if verdict.outcome == REFUSED:
            refusals[kind][verdict.cause] += 1
        elif verdict.outcome in BAD:
            causes[f"{verdict.outcome}: {verdict.cause}"].append(case)
    for cause, found in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(found)} x {cause}\n{verdicts[found[0]].details}  {command(found[0], seed)}")
    columns = (GOOD, REFUSED, *BAD)
    print(f"\n{'kind':14}{'cases':>7}" + "".join(f"{name:>9}" for name in columns) + f"{'longest':>9}  refused by")
    for kind, counts in outcomes.items():
        by = ", ".join(f"{name} {count}" for name, count in refusals[kind].most_common())
        row = "".join(f"{counts[name]:>9}" for name in columns)
        print(f"{kind:14}{counts.total():>7}{row}{longest[kind]:>8.2f}s  {by}")
    bad = sum(len(found) for found in causes.values())
    print(f"\n{len(verdicts):,} cases, {bad} bad (seed {seed})")
    return 1 if bad else 0

"""Audits: decode some requests in full too, and test with them that the risk of faster recipes is small.

A log is one file of JSON lines: a header, then one line per audited request, in the order of arrival. Everything else
(tests, bounds, the rung in use, alarms) is computed from these lines, so a restart continues where the log ends.

Requests are chosen by a hash of a random seed and the request, so the choice does not depend on any result. Losses are
added in the order of arrival, because a request that finishes early is more often an easy one: in the order of
completion, the first losses would be too small. So every test is an e-process, which may be looked at after every loss.

The risk of the rung in use is tested against "at most eps". The tests of one rung share the error probability delta:
one half is for all requests together, the other one for labels, the j-th label that appears getting 1 / (j (j + 1)) of
it. In a climb the k-th rung that comes into use gets 1 / (k (k + 1)) of delta. These shares add up to at most 1, so the
probability of any false alarm is at most delta, however long the log becomes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
import numpy as np

from foretell.certify.betting import EProcess, bounds, place_bets, zeros_needed
from foretell.certify.risk import check_shares
from foretell.errors import ForetellError, RequestError, StorageError, show, within
from foretell.storage import check_format, convert, lock_file, open_file, parse_json, writing

FORMAT = 1
PATIENCE = 1.0  # seconds to wait for another run that writes the same log
LATER = 1000  # losses after which half of the wealth that waits has joined a drift test
PATIENT = 10  # times the audits that a rung without a loss needs; a rung that needs more is audited less often
LONGEST = 1 << 20  # bytes of a line; a longer one is no line of a log
CHANGEABLE = (
    "seed",
    "share",
    "rest",
    "pilot",
    "torch",
    "options",
)  # what a run that continues a log may have otherwise
RUNGS = 1000  # the most that a ladder may have
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Pair = Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a log: the model, the goal, and the recipes from safe to fast."""

    model: str
    model_sha256: str
    dtype: str | None
    risk: float
    confidence: float
    loss: str
    graded: bool  # whether losses between 0 and 1 are expected
    share: float  # of requests that are audited while rungs can be earned; and always, if none has to be
    against: str  # the recipe of full decoding, rung 0
    rungs: list[str]  # rungs 1, 2, ...; an audit of one recipe has one
    climbs: bool = False  # whether full decoding is in use at first, and faster rungs have to be earned
    rest: float | None = None  # the share after the climb; None: the same
    pilot: list[str] = field(default_factory=list)  # keys of requests that placed the rungs, and are no evidence
    fills: bool = False  # for texts with masks
    window: int | None = None  # positions, where all requests have the same
    answer: Pair | None = None
    pins: list[Pair] | None = None
    options: dict[str, str | int | bool] = field(default_factory=dict)  # of `generate`, that describe the window
    device: str | None = None  # its type
    compile: bool | None = None
    torch: str | None = None  # version
    certificate: str | None = None  # the digest of the certificate that is audited
    seed: str = field(default_factory=lambda: secrets.token_hex(8))
    foretell_audit: int = FORMAT

    def __post_init__(self) -> None:
        check_shares(self.risk, self.confidence)
        for share in (self.share, self.rest or 0.0):
            within("the share of audits", share, 0.0, 1.0, RequestError)
        if not 1 <= len(self.rungs) <= RUNGS:
            raise RequestError(f"a log has from 1 to {RUNGS} rungs, got {len(self.rungs)}")

    @property
    def delta(self) -> float:
        return 1 - self.confidence

    def chooses(self, key: str, share: float) -> bool:
        """Return whether a request is among the audited `share`; one that is stays in every larger share."""
        drawn = hashlib.sha256(f"{self.seed} {key}".encode()).digest()[:8]
        return int.from_bytes(drawn, "big") < share * 2**64

    def check_same(self, other: Header, path: Path) -> None:
        """Raise RequestError if a log with this header cannot be continued by a run that would write `other`."""
        compared = {one.name: (getattr(self, one.name), getattr(other, one.name)) for one in fields(self)}
        compared["chat"] = (self.options.get("chat"), other.options.get("chat"))
        for one, (there, here) in compared.items():
            if one not in CHANGEABLE and there != here:
                raise RequestError(
                    f"the log {path} is about another run: its {one} is {show(there)}, not {show(here)}; name another "
                    "file, or move it first"
                )


def key_of(name: str | int, prompt: object) -> str:
    """Return the key of a request: the same id and prompt are the same request, which is audited once."""
    written = json.dumps([name, prompt], default=str)
    return hashlib.sha256(written.encode("utf8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Entry:
    """One audited request. Numbers are per rung; None: this rung did not decode it."""

    id: str | int
    key: str
    label: str | None
    used: Count  # the rung that answered; 0 is full decoding
    losses: list[Share | None]  # of rungs 1, 2, ...
    forwards: list[Count | None]  # of rungs 0, 1, ...
    exit: int | None = None  # the step at which the answer stopped early
    error: str | None = None  # why full decoding failed, so that there is nothing to compare with


@dataclass(frozen=True, slots=True)
class Event:
    """A change after an audit: a rung is earned, comes into use, or has an alarm."""

    kind: Literal["ladder", "earned", "use", "alarm"]  # "ladder": the pilot is over, and the rungs are placed
    rung: int  # the one that is earned, is used from now on, or has the alarm
    audits: int  # losses that the decision is based on
    label: str | None = None


class DriftTest:
    """Tests "the risk is at most eps" on a stream whose risk may rise at any time.

    After thousands of small losses, the wealth of a bet on large losses is tiny and needs long to grow again. So only
    half of the wealth bets from the first loss on. The rest joins gradually: 1/2 c / ((t + c - 1) (t + c)) of the
    wealth with loss t. The bets are those of `EProcess`. Wealth that joins at a time that was fixed in advance does
    not change the expectation, so this is an e-process too.
    """

    def __init__(self, risk: float) -> None:
        self.risk, self.count, self.peak = risk, 0, 1.0
        self._stakes, shares = place_bets(risk, "at most")
        self._shares = np.exp(shares)
        self._wealth = self._shares / 2
        self._waiting = 0.5  # the wealth that has not joined

    def add(self, loss: float) -> None:
        self.count += 1
        left = 0.5 * LATER / (self.count + LATER)
        joined = self._wealth + self._shares * (self._waiting - left)
        self._waiting = left
        self._wealth = np.minimum(joined * (1 + self._stakes * (self.risk - loss)), 1e300)
        self.peak = max(self.peak, float(self._wealth.sum()) + self._waiting)

    def rejects(self, delta: float) -> bool:
        return self.peak * delta >= 1


class AuditState:
    """The state that follows from all lines of a log. Full decoding is rung 0."""

    def __init__(self, header: Header) -> None:
        self.header = header
        rungs = range(len(header.rungs) + 1)
        self.rung = 0 if header.climbs else 1  # in use
        self.earned = self.rung  # this rung and all before it may be used
        self.top = len(header.rungs)  # rungs above cannot be earned (any more)
        self.audits = self.failed = 0
        self.losses: list[list[float]] = [[] for _ in rungs]
        self.by_label: dict[str, list[float]] = {}  # losses of the rung in use, in the order of first appearance
        self.recent: list[float] = []  # losses of the rung in use, since it is
        self.forwards = [[0, 0] for _ in rungs]  # of this rung, and of full decoding on the same requests
        self.small = [
            EProcess(header.risk, "above", graded=header.graded) for _ in rungs
        ]  # rejected: the risk is at most eps
        self.large = [EProcess(header.risk, "at most") for _ in rungs]  # rejected: the risk is above eps
        self.events: list[Event] = []
        self.caps: dict[str, int] = {}  # the last rung that requests with a label still get
        self.drifted = False  # whether the one recipe of an audit had an alarm for all requests
        self._patience = PATIENT * zeros_needed(header.risk, header.delta, graded=header.graded)  # audits
        self._uses = 1
        self._ranks: dict[str, int] = {}  # labels in the order of their first appearance with the rung in use, from 1
        self._tests: dict[str | None, DriftTest] = {}  # of the rung in use, by label; None: all requests

    def serving(self, label: str | None) -> int:
        """Return the rung that a request gets."""
        if self.drifted:
            return 0
        return self._fastest(self.caps[label]) if label is not None and self._is_known(label) else self.rung

    @property
    def share(self) -> float:
        """The share of requests that are audited now. It falls when nothing is left to earn, or when that takes long.

        It depends only on earlier results, so it does not bias the tests.
        """
        header = self.header
        if header.rest is None:
            return header.share
        climbing = any(self.small[rung].count < self._patience for rung in self.explored()[:1])
        return header.share if climbing else header.rest

    def explored(self, ahead: int | None = None) -> list[int]:
        """Return the rungs that can still be earned, `ahead` of them or all.

        Nothing at or above a rung that is known to be bad can be earned, because rungs are earned in order.
        """
        last = self.top if ahead is None else min(self.top, self.earned + ahead)
        found: list[int] = []
        for rung in range(self.earned + 1, last + 1):
            if self.large[rung].rejects(self.header.delta):
                break
            found.append(rung)
        return found

    def add(self, entry: Entry) -> list[Event]:
        """Add an audited request, and return what changes with it."""
        if entry.error is not None:
            self.failed += 1
            return []
        self.audits += 1
        for rung, loss in enumerate(entry.losses, 1):
            if loss is not None:
                self.losses[rung].append(loss)
                self.small[rung].add(loss)
                self.large[rung].add(loss)
            taken, full = entry.forwards[rung], entry.forwards[0]
            if taken is not None and full is not None:
                self.forwards[rung] = [self.forwards[rung][0] + taken, self.forwards[rung][1] + full]
        before = len(self.events)
        self._watch(entry)
        self._climb()
        return self.events[before:]

    def _watch(self, entry: Entry) -> None:
        """Test the rung in use, and use an earlier one if its risk is too high."""
        loss = entry.losses[self.rung - 1] if self.rung and entry.used == self.rung else None
        if loss is None:
            return
        self.recent.append(loss)
        if entry.label is not None:
            self.by_label.setdefault(entry.label, []).append(loss)
            self._ranks.setdefault(entry.label, len(self._ranks) + 1)
        scopes = [None] if entry.label is None else [None, entry.label]
        for label in scopes:
            test = self._tests.setdefault(label, DriftTest(self.header.risk))
            test.add(loss)
            if test.rejects(self.level(label)) and not self._is_known(label):
                self.events.append(Event("alarm", self.rung, test.count, label))
                if label is None:
                    self._step_down()
                    return
                self.caps[label] = self.rung - 1

    @property
    def shared(self) -> int:
        """The rung in use, or the fastest one that also the labels with an alarm get."""
        caps = [cap for label, cap in self.caps.items() if self._is_known(label)]
        return self._fastest(min(caps)) if caps else self.rung

    def _is_known(self, label: str | None) -> bool:
        return self.drifted if label is None else self.caps.get(label, self.rung) < self.rung

    def level(self, label: str | None) -> float:
        """Return the error probability of a test of the rung in use."""
        use = 1 / (self._uses * (self._uses + 1)) if self.header.climbs else 1.0
        if label is None:
            return self.header.delta * use / 2
        rank = self._ranks[label]
        return self.header.delta * use / 2 / (rank * (rank + 1))

    def evidence(self, label: str | None = None) -> float:
        """Return the largest wealth so far of the test of the rung in use, relative to its start."""
        return self._tests[label].peak if label in self._tests else 1.0

    def _step_down(self) -> None:
        """Give up the rung in use and all after it."""
        if not self.header.climbs:
            self.drifted = True
            return
        self.top = self.earned = self.rung - 1
        self._use_fastest()

    def _climb(self) -> None:
        """Earn the rungs whose tests, and those of all rungs before them, have rejected "the risk is above eps"."""
        before = self.earned
        while self.earned < self.top and self.small[self.earned + 1].rejects(self.header.delta):
            self.earned += 1
            self.events.append(Event("earned", self.earned, self.small[self.earned].count))
        if self.earned > before:
            self._use_fastest()

    def _fastest(self, last: int) -> int:
        """Return the rung up to `last` that has needed the fewest forwards; the safest of equal ones."""
        return max(range(last + 1), key=lambda rung: self.speedup(rung) or 0.0)

    def _use_fastest(self) -> None:
        """Use the fastest earned rung, with new drift tests if it is another one.

        Only when a rung is earned or given up: each change costs a part of delta.
        """
        rung = self._fastest(self.earned)
        if rung == self.rung:
            return
        self.rung, self._uses = rung, self._uses + 1
        self._tests, self._ranks, self.recent, self.by_label = {}, {}, [], {}
        self.events.append(Event("use", rung, self.small[rung].count))

    def bound(self, losses: Sequence[float]) -> float:
        """Return an upper bound of the mean of a stream, which holds at all times with the goal's confidence."""
        return bounds(np.array(losses), self.header.delta, graded=self.header.graded)[1] if losses else 1.0

    def speedup(self, rung: int) -> float | None:
        """Return full decoding's forwards divided by those of a rung, on the same requests; None if none is known."""
        taken, full = self.forwards[rung] if rung else (1, 1)
        return full / taken if taken else None

    def needed(self, rung: int) -> int | None:
        """Return about how many more requests a rung needs to be earned if its losses go on like this, or None."""
        test = self.small[rung]
        if test.rejects(self.header.delta):
            return 0
        if test.log_wealth <= 0 or not self.share:
            return None
        missing = math.log(1 / self.header.delta) - test.log_wealth
        return math.ceil(missing * test.count / test.log_wealth / self.share)


def read_log(path: str | Path) -> AuditState:
    """Read a log, also while it is written. Raises StorageError if it is missing or damaged."""
    state, _, _ = _read(Path(path))
    if state is None:
        raise StorageError(f"{path} is empty; the header of an audit log is missing")
    return state


def _read(path: Path) -> tuple[AuditState | None, set[str], int]:
    """Return the state, the keys of the audited requests, and the offset of the last complete line's end."""
    state, keys, end = None, set[str](), 0
    with open_file(path, "audit log") as file:
        number = 0
        while (line := file.readline(LONGEST)).endswith(b"\n"):  # otherwise it is being written, or was cut off
            number, end = number + 1, end + len(line)
            try:
                if state is None:
                    state = AuditState(_header(line))
                    continue
                entry = _entry(line, state)
                if entry.key in keys:
                    raise StorageError(f"the request {entry.id!r} is in the log twice")
                keys.add(entry.key)
                state.add(entry)
            except ForetellError as error:
                raise StorageError(f"{path}, line {number}: not of an audit log: {error}") from error
        if len(line) == LONGEST:
            raise StorageError(f"{path}, line {number + 1}: has more than {LONGEST:,} bytes; not of an audit log")
    return state, keys, end


def _header(line: bytes) -> Header:
    value = parse_json(line, "it")
    check_format(value, "foretell_audit", FORMAT)
    return convert(value, Header)


def _entry(line: bytes, state: AuditState) -> Entry:
    entry = convert(parse_json(line, "it"), Entry)
    rungs = len(state.header.rungs)
    if len(entry.losses) != rungs or len(entry.forwards) != rungs + 1 or entry.used > rungs:
        raise StorageError(f"does not fit a ladder of {rungs} rungs")
    return entry


class AuditLog:
    """A log that is open for writing. Without a header, it has to be started before anything is added."""

    def __init__(self, path: Path, file: BinaryIO, state: AuditState | None, keys: set[str]) -> None:
        self.path, self.state, self._file = path, state, file
        self.keys = keys  # of audited requests

    def start(self, header: Header) -> AuditState:
        """Write the header, unless the log has one; then both have to agree."""
        if self.state is None:
            self._write(asdict(header))
            self.state = AuditState(header)
        else:
            self.state.header.check_same(header, self.path)
            self.state.header = replace(self.state.header, share=header.share, rest=header.rest)
        return self.state

    def add(self, entry: Entry) -> list[Event]:
        """Write a line, and return what changes with it."""
        assert self.state is not None, "the log has been started"
        self._write(asdict(entry))
        self.keys.add(entry.key)
        return self.state.add(entry)

    def _write(self, value: dict[str, Any]) -> None:
        with writing(self.path):
            self._file.write(json.dumps(value).encode() + b"\n")
            self._file.flush()


@contextmanager
def open_log(path: Path) -> Iterator[AuditLog]:
    """Open a log for writing, or create it; other processes can read it meanwhile, but not write it."""
    lock = path.with_name(f".{path.name}.lock")
    with lock_file(lock, PATIENCE):
        state, keys, end = _read(path) if path.exists() else (None, set[str](), 0)
        with writing(path):
            file = path.open("ab")
        try:
            with writing(path):
                os.truncate(path, end)  # removes a line that was cut off
            yield AuditLog(path, file, state, keys)
        finally:
            with writing(path):
                file.close()
                if path.stat().st_size == 0:  # never started
                    path.unlink()
            lock.unlink(missing_ok=True)

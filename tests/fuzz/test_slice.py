"""A slice of `make fuzz`, and proof that the fuzzer notices faults."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.kinds import KINDS, share_out
from tests.fuzz.runner import BAD, GOOD, REFUSED, command, judge

ROOT = Path(__file__).parents[2]
# Runs in a process of its own, which can be forked safely. Every worker that ends takes only its own case with it.
PLANTED = r"""
import os, signal, subprocess, sys
from foretell.errors import RequestError
from tests.fuzz.runner import Limits, print_summary, run_cases

class Panic(BaseException):
    pass

def good(rng):
    rng.random()

def refused(rng):
    raise RequestError("no")

def foreign(rng):
    raise KeyError("planted")

def panics(rng):
    raise Panic("planted")

def leaves(rng):
    sys.exit(0)

def hangs(rng):
    while True:
        pass

def delegates(rng):
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"])

def waits(rng):
    os.read(os.pipe()[0], 1)

def segfaults(rng):
    os.kill(os.getpid(), signal.SIGSEGV)

def aborts(rng):
    os.abort()

def exits(rng):
    os._exit(3)

def hoards(rng):
    bytearray(1 << 31)

kinds = {one.__name__: one for one in KINDS}
cases = [(name, 1) for name in kinds]
verdicts = run_cases(kinds, cases, 7, Limits(cpu_seconds=0.2, patience=PATIENCE, memory=1 << 30))
for (name, number), verdict in verdicts.items():
    print("verdict", name, verdict.outcome, verdict.cause)
sys.exit(print_summary(verdicts, 7))
"""


def run_planted(*names: str, patience: float = 500.0) -> tuple[int, str, dict[str, str]]:
    """Run one case of each kind. Returns the exit code, the output, and how each case ended."""
    code = PLANTED.replace("KINDS", f"({', '.join(names)},)").replace("PATIENCE", str(patience))
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True)
    verdicts = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("verdict ")]
    assert len(verdicts) == len(names), done.stderr
    return done.returncode, done.stdout, {name: how.partition(" at ")[0].strip() for name, how in verdicts}


def test_the_fuzzer_notices_every_fault() -> None:
    expected = {
        "foreign": "foreign KeyError",
        "panics": "foreign Panic",
        "leaves": "foreign SystemExit",
        "delegates": "slow too much CPU time",
        "hangs": "slow too much CPU time",
        "segfaults": "crashed SIGSEGV",
        "aborts": "crashed SIGABRT",
        "exits": "crashed exit code 3",
        "hoards": "foreign MemoryError",
        "refused": "refused RequestError",
        "good": "good",
    }
    code, output, found = run_planted(*expected)
    assert found == expected
    assert code == 1
    assert "11 cases, 9 bad (seed 7)" in output
    assert "python -m tests.fuzz --kind hangs --seed 7 --only 1" in output


def test_the_fuzzer_notices_a_case_that_waits_forever() -> None:
    code, _, found = run_planted("waits", "good", patience=5.0)
    assert found == {"waits": "slow waits without end", "good": "good"}
    assert code == 1


def test_nothing_bad_is_success() -> None:
    code, output, _ = run_planted("good", "refused")
    assert code == 0
    assert "2 cases, 0 bad (seed 7)" in output


def test_a_case_is_the_same_every_time() -> None:
    drawn: list[float] = []
    for number in (3, 3, 4):
        judge(lambda rng: drawn.append(rng.random()), "traces", 7, number)
    assert drawn[0] == drawn[1] != drawn[2]


def test_cases_are_shared_out() -> None:
    usual = share_out(list(KINDS), None)
    assert sum(usual.values()) >= 20_000
    assert all(count >= 1 for count in share_out(list(KINDS), 10).values())
    assert share_out(["traces"], 50) == {"traces": 50}


@pytest.mark.parametrize("kind", KINDS)
def test_slice(kind: str) -> None:
    ends: Counter[str] = Counter()
    bad: list[str] = []
    for number in range(KINDS[kind].slice):
        verdict = judge(KINDS[kind].run, kind, 0, number)
        ends[verdict.outcome] += 1
        if verdict.outcome in BAD:
            bad.append(f"{verdict.cause}\n{verdict.details}{command((kind, number), 0)}")
    assert not bad, "\n\n".join(bad)
    assert ends[GOOD], "a kind whose inputs are all refused tests little"
    assert ends[REFUSED], "a kind whose inputs are all good tests little"

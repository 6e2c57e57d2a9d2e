"""Certificates, repeated looks and alarms on simulated losses, whose risk is known: how often each of them is wrong.

    python runs/validity.py                  # a few minutes on one core

Nothing is decoded here. Losses are drawn at random with a known mean, and tested with the functions that `tune`,
`generate --risk` and `generate --audit` use.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.certify.betting import Array, log_wealths
from foretell.certify.risk import binomial_p_values, count_certified, p_values, spend
from foretell.evaluation.intervals import scipy_stats
from page import Numbers, publish
from results_page import RESULTS
from shared import SEED, run_script

RUNS = 10_000
DELTA = 0.05
KINDS = ("0/1", "graded")  # graded: mostly zeros, otherwise any share up to a half
CHUNK = 2_000_000  # losses that are drawn at once

LADDER_RISK, LADDER_LOSSES = 0.02, 463  # at most 4 errors among 463 have a probability of 4.5% at 2%: just below delta
SAFE, UNSAFE = (0.005, 0.01, 0.02), (1.5, 2.0)  # risks of rungs around the one in question, in multiples of eps
NEAR = (1.0, 1.02)  # risk of the rung in question: exactly eps, and just above

LOOKS_RISK, LOOKS_LOSSES = 0.01, 5000
SCHEDULES = {"every 250 from 500 to 2000": range(500, 2001, 250), "every 50 from 50 to 5000": range(50, 5001, 50)}
LOOKS_TRUE = (1.0, 0.4)  # in multiples of eps: where certifying is wrong in the limit, and where it is right

ALARM_RISK, ALARM_LEVEL = 0.01, 0.01
REQUESTS, AUDITED = 1_000_000, (0.02, 1.0)  # and the share of them that is audited
DRIFTS = (0.015, 0.02, 0.03, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Share:
    """How often something happened, with its exact 95% interval."""

    runs: int
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        found = scipy_stats().binomtest(self.count, self.runs).proportion_ci(0.95, method="exact")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.count / self.runs:.2f}% ({100 * low:.2f} to {100 * high:.2f})"


@dataclass(frozen=True, slots=True)
class LadderCase:
    losses: str
    rungs: str  # how the losses of the rungs of one run depend on each other
    risk: float  # of the rung in question, in multiples of eps
    test: str
    wrong: Share  # runs that certify a rung with a risk of eps or more


@dataclass(frozen=True, slots=True)
class LooksCase:
    looks: str
    risk: float  # in multiples of eps
    way: str
    certified: Share


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    losses: str
    audited: float
    audits: int
    alarms: Share


@dataclass(frozen=True, slots=True)
class Delay:
    """The number of audits until an alarm."""

    losses: str
    risk: float
    median: float
    most: float  # 95% of the runs have an alarm by then
    runs: int


def draw_losses(rng: np.random.Generator, kind: str, risks: float | Array, shape: tuple[int, ...]) -> Array:
    """Return losses whose means are `risks`. Those that share a random number of the given `shape` are nested."""
    hard = rng.random(shape)
    if kind == "0/1":
        return np.asarray(hard < risks, dtype=float)
    return np.where(hard < 4 * np.asarray(risks), rng.uniform(0, 0.5, shape), 0.0)


def chunks(runs: int, losses: int) -> Iterator[int]:
    """Yield numbers of runs that add up to `runs` and fit in memory, given the losses per run."""
    step = max(1, CHUNK // losses)
    yield from (min(step, runs - start) for start in range(0, runs, step))


def simulate_ladders(runs: int, rng: np.random.Generator) -> Iterator[LadderCase]:
    """Certify ladders of six rungs of which the fourth and later ones have a risk of eps or more."""
    for kind in KINDS:
        for rungs in ("independent", "nested"):
            for near in NEAR:
                risks = LADDER_RISK * np.array([*SAFE, near, *UNSAFE])
                tests = {"exact binomial": False, "betting": True} if kind == "0/1" else {"betting": True}
                wrong = dict.fromkeys(tests, 0)
                for part in chunks(runs, len(risks) * LADDER_LOSSES):
                    shape = (part, 1 if rungs == "nested" else len(risks), LADDER_LOSSES)
                    losses = draw_losses(rng, kind, risks[:, None], shape)
                    for test, graded in tests.items():
                        passed = count_certified(p_values(losses, LADDER_RISK, graded=graded), 1 - DELTA)
                        wrong[test] += int((passed > len(SAFE)).sum())
                yield from (LadderCase(kind, rungs, near, test, Share(runs, wrong[test])) for test in tests)


def simulate_looks(runs: int, rng: np.random.Generator) -> Iterator[LooksCase]:
    """Look at 0/1 losses again and again, and certify at the first look that allows it."""
    for multiple in LOOKS_TRUE:
        found = {(looks, way): 0 for looks in SCHEDULES for way in ("naive", "spent", "betting")}
        for part in chunks(runs, LOOKS_LOSSES):
            losses = draw_losses(rng, "0/1", multiple * LOOKS_RISK, (part, LOOKS_LOSSES))
            errors, wealth = losses.cumsum(axis=1), log_wealths(losses, LOOKS_RISK, "above")
            for looks, counts in SCHEDULES.items():
                at = np.array(counts)
                values = np.stack([binomial_p_values(errors[:, n - 1], n, LOOKS_RISK) for n in counts], axis=1)
                levels = np.array([spend(DELTA, look) for look in range(1, len(at) + 1)])
                found[looks, "naive"] += int((values <= DELTA).any(axis=1).sum())
                found[looks, "spent"] += int((values <= levels).any(axis=1).sum())
                # Betting may be looked at after every loss, so it is.
                found[looks, "betting"] += int((wealth[:, : at[-1]].max(axis=1) >= -math.log(DELTA)).sum())
        yield from (LooksCase(looks, multiple, way, Share(runs, count)) for (looks, way), count in found.items())


def simulate_false_alarms(runs: int, rng: np.random.Generator) -> Iterator[FalseAlarms]:
    """Audit a million requests whose risk is exactly eps."""
    for audited in AUDITED:
        audits = round(audited * REQUESTS)
        some = max(1, runs // (2 if audited < 1 else 50))
        for kind in KINDS if audited < 1 else KINDS[:1]:
            alarms = 0
            for part in chunks(some, audits):
                losses = draw_losses(rng, kind, ALARM_RISK, (part, audits))
                peaks = log_wealths(losses, ALARM_RISK, "at most").max(axis=1)
                alarms += int((peaks >= -math.log(ALARM_LEVEL)).sum())
            yield FalseAlarms(kind, audited, audits, Share(some, alarms))


def simulate_delays(runs: int, rng: np.random.Generator) -> Iterator[Delay]:
    """Audit requests whose risk is above eps until the alarm."""
    for kind in KINDS:
        for risk in DRIFTS:
            some, longest = max(1, runs // 5), round(60 * ALARM_RISK / (risk - ALARM_RISK) ** 2) + 200
            first: list[float] = []
            for part in chunks(some, longest):
                losses = draw_losses(rng, kind, risk, (part, longest))
                alarms = log_wealths(losses, ALARM_RISK, "at most") >= -math.log(ALARM_LEVEL)
                first += np.where(alarms.any(axis=1), alarms.argmax(axis=1) + 1, math.inf).tolist()
            # An interpolated quantile between an alarm and none would not be a number.
            median, most = (float(np.quantile(first, share, method="higher")) for share in (0.5, 0.95))
            yield Delay(kind, risk, median, most, some)


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of all tables, and in how many cases the promise is kept."""
    ladders = [LadderCase(**one | {"wrong": Share(**one["wrong"])}) for one in numbers["ladders"]]
    looks = [LooksCase(**one | {"certified": Share(**one["certified"])}) for one in numbers["looks"]]
    alarms = [FalseAlarms(**one | {"alarms": Share(**one["alarms"])}) for one in numbers["false_alarms"]]
    promised = [(one.wrong, DELTA) for one in ladders]
    promised += [(one.certified, DELTA) for one in looks if one.risk == 1 and one.way != "naive"]
    promised += [(one.alarms, ALARM_LEVEL) for one in alarms]
    by_case = {(one.looks, one.way, one.risk): one.certified for one in looks}
    always, power = LOOKS_TRUE
    return {
        "promised": len(promised),
        "below": sum(share.count <= level * share.runs for share, level in promised),
        "broken": sum(share.interval[0] > level for share, level in promised),
        "sizes": {"ladder": LADDER_LOSSES, "requests": REQUESTS},
        "risks": {"ladder": LADDER_RISK, "looks": LOOKS_RISK, "alarm": ALARM_RISK},
        "ladder_rows": [[one.losses, one.rungs, one.test, f"{one.risk:g} eps", str(one.wrong)] for one in ladders],
        "look_rows": [
            [case, way, str(found), str(by_case[case, way, power])]
            for (case, way, risk), found in by_case.items()
            if risk == always
        ],
        "alarm_rows": [
            [one.losses, f"{100 * one.audited:g}%", f"{one.audits:,}", str(one.alarms.runs), str(one.alarms)]
            for one in alarms
        ],
        "delay_rows": [
            [one.losses, f"{100 * one.risk:g}%", f"{one.median:.0f}", f"{one.most:.0f}", str(one.runs)]
            for one in (Delay(**each) for each in numbers["delays"])
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"simulated calibration sets per case (default: {RUNS})")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args()
    options.own, options.model = True, "simulated"
    options.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    ladders, looks = [*simulate_ladders(options.runs, rng)], [*simulate_looks(options.runs, rng)]
    false_alarms, delays = [*simulate_false_alarms(options.runs, rng)], [*simulate_delays(options.runs, rng)]
    numbers: dict[str, Any] = (
        {} if options.runs == RUNS else {"command": f"python runs/validity.py --runs {options.runs}"}
    )
    numbers |= {"runs": options.runs, "delta": DELTA, "alarm_level": ALARM_LEVEL}
    numbers |= {
        "ladders": [asdict(one) for one in ladders],
        "looks": [asdict(one) for one in looks],
        "false_alarms": [asdict(one) for one in false_alarms],
        "delays": [asdict(one) for one in delays],
    }
    publish("validity", numbers, options)


if __name__ == "__main__":
    run_script(main)

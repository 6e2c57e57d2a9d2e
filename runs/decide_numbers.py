"""What runs/decide.py computes from decisions: accuracy, calibration and coverage of each way to read a slot."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from foretell.decide.answers import soften
from foretell.decide.calibration import calibration_error, find_quantile, fit, fit_temperature
from foretell.evaluation.intervals import Interval, exact, paired_difference, wilson

COVERAGE = 0.95  # of conformal sets
SPLITS = 200
DRAWS = 2000  # simulated models per noise floor


@dataclass(frozen=True, slots=True)
class Row:
    """One way on one task."""

    task: str
    way: str
    recipe: str
    problems: int
    questions: int
    accuracy: float
    interval: Interval
    difference: float  # to full decoding
    difference_interval: Interval
    changed: float  # answers that differ from full decoding's
    forwards: float  # per problem
    mass: float  # smallest label mass
    error: float  # expected calibration error
    temperature: float | None = None
    error_after: float | None = None  # with this temperature alone
    covered: float | None = None  # share of conformal sets with the right label
    covered_interval: Interval | None = None
    size: float | None = None  # labels per conformal set
    mean_covered: float | None = None  # over random splits of both sets of problems


@dataclass(frozen=True, slots=True)
class CalibratedRow:
    """What a calibration gives on one task, with the default recipe."""

    task: str
    learned: int  # problems
    tested: int
    questions: int  # of the problems tested
    accuracy: float
    error: float  # expected calibration error of the model's own probabilities
    temperature: float  # alone
    error_warm: float  # with it
    doubting: tuple[float, float]  # temperature and doubt, without caution
    error_doubting: float
    fitted: tuple[float, float, float]  # temperature, doubt and caution
    error_after: float
    ranking: tuple[float | None, ...]  # how well right answers rank above wrong ones: before, after, by thinking
    floor: tuple[float, float]  # that a perfectly calibrated model has on so many answers: mean, and 95th percentile
    covered: float
    binomial: Interval  # around what was found
    expected: Interval  # in which the coverage is found with 95% probability if the promise is exact
    splits: Interval  # the middle 95% of random splits
    mean_covered: float
    size: float


@dataclass(frozen=True, slots=True)
class CertifiedRow:
    """A recipe that is certified against full decoding at one risk, on problems that it was not chosen on."""

    task: str
    risk: float
    pilot: int
    calibration: int
    recipe: str | None  # None: nothing could be certified
    speedup: float | None = None  # on the calibration set
    problems: int = 0  # held out
    changed: int = 0  # of these, with an answer that differs from full decoding's
    interval: Interval = Interval(0.0, 1.0)
    forwards: float = 0.0
    full_forwards: float = 0.0
    accuracy: float = 0.0
    difference: float = 0.0
    difference_interval: Interval = Interval(0.0, 0.0)


def summarise(
    task: str,
    way: str,
    about: tuple[str, Mapping[str, int]],
    tested: Sequence[Mapping[str, Any]],
    full: Sequence[Mapping[str, Any]],
    learned: Sequence[Mapping[str, Any]],
) -> Row:
    """Return what one way gives on the problems `tested`, with a calibration on those `learned`."""
    items, whole = ([item for row in rows for item in row["items"]] for rows in (tested, full))
    hits, full_hits = (np.array([_best(item) == item["right"] for item in each]) for each in (items, whole))
    changed = np.mean([_best(one) != _best(other) for one, other in zip(items, whole, strict=True)])
    lost, won = int((full_hits & ~hits).sum()), int((hits & ~full_hits).sum())
    more: dict[str, Any] = {}
    if learned:
        rows = [item for row in learned for item in row["items"]]
        right = [item["right"] for item in rows]
        made = fit([np.array(item["p"]) for item in rows], right, COVERAGE, _inputs(learned))  # for its quantile
        temperature = fit_temperature([np.array(item["p"]) for item in rows], right)
        softened = [soften(np.maximum(item["p"], 1e-12), temperature) for item in items]
        sets = [made.select(np.array(item["p"])) for item in items]
        covered, covered_interval = cover(tested, sets)
        more = {
            "temperature": temperature,
            "error_after": calibration_error([float(p.max()) for p in softened], hits.tolist()),
            "covered": covered,
            "covered_interval": covered_interval,
            "size": float(np.mean([len(chosen) for chosen in sets])),
            "mean_covered": float(np.mean(split_coverages([*tested, *learned], len(learned)))),
        }
    recipe, options = about
    return Row(
        task=task,
        way=way,
        recipe=" ".join([recipe, *(f"{name}={value}" for name, value in options.items())]),
        problems=len(tested),
        questions=len(items),
        accuracy=float(hits.mean()),
        interval=wilson(int(hits.sum()), len(hits)),
        difference=(won - lost) / len(hits),
        difference_interval=paired_difference(lost, won, len(hits)),
        changed=float(changed),
        forwards=float(np.mean([row["forwards"] for row in tested])),
        mass=min(item["mass"] for item in items),
        error=calibration_error([max(item["p"]) for item in items], hits.tolist()),
        **more,
    )


def _inputs(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the number of the problem that each answer is about."""
    return [place for place, row in enumerate(rows) for _ in row["items"]]


def cover(rows: Sequence[Mapping[str, Any]], sets: Iterable[Collection[int]]) -> tuple[float, Interval]:
    """Return the mean share of a problem's answers whose right label is in the set, and a binomial interval of it.

    Answers of one problem depend on each other, so the interval counts problems. The conformal promise is for an answer
    that is drawn from another problem, so every problem counts once.
    """
    found = iter(sets)
    share = float(np.mean([np.mean([item["right"] in next(found) for item in row["items"]]) for row in rows]))
    return share, exact(round(share * len(rows)), len(rows))


def split_coverages(rows: Sequence[Mapping[str, Any]], calibration: int) -> list[float]:
    """Return the coverage of conformal sets in each of some random splits of the problems."""
    rng = np.random.default_rng(0)
    scores = [[1 - item["p"][item["right"]] for item in row["items"]] for row in rows]
    shares = []
    for _ in range(SPLITS):
        mixed = [scores[at] for at in rng.permutation(len(scores))]
        learned, tested = mixed[:calibration], mixed[calibration:]
        inputs = [place for place, part in enumerate(learned) for _ in part]
        bound = find_quantile([score for part in learned for score in part], COVERAGE, inputs)
        shares.append(float(np.mean([np.mean(np.array(part) <= bound + 1e-12) for part in tested])))
    return shares


def expect_coverage(learned: int, tested: int) -> Interval:
    """Return the middle 95% of the coverage of conformal sets: beta-binomial, because the quantile is random too.

    With n independent rows and a continuous score, the coverage of the k-th smallest score is Beta(k, n + 1 - k).
    """
    rank = math.ceil((learned + 1) * COVERAGE - 1e-9)
    found = stats.betabinom(tested, rank, learned + 1 - rank)
    return Interval(float(found.ppf(0.025)) / tested, float(found.ppf(0.975)) / tested)


def find_floor(confidences: Sequence[float]) -> tuple[float, float]:
    """Return the calibration error of a perfectly calibrated model with these confidences: mean, 95th percentile."""
    rng, given = np.random.default_rng(0), np.asarray(confidences)
    found = [calibration_error(confidences, (rng.random(len(given)) < given).tolist()) for _ in range(DRAWS)]
    return float(np.mean(found)), float(np.quantile(found, 0.95))


def rank_right(scores: Sequence[float], hits: Sequence[bool]) -> float | None:
    """Return how often a right answer scores above a wrong one (AUROC; equal scores count half); None: all equal."""
    found, right = np.asarray(scores), np.asarray(hits, dtype=bool)
    if right.all() or not right.any():
        return None
    ranks = stats.rankdata(found)
    above = ranks[right].sum() - right.sum() * (right.sum() + 1) / 2
    return float(above / (right.sum() * (~right).sum()))


def check_calibration(
    task: str, tested: Sequence[Mapping[str, Any]], learned: Sequence[Mapping[str, Any]]
) -> CalibratedRow:
    """Return what is learned from some problems and how it holds on those `tested`."""
    items, rows = ([item for row in each for item in row["items"]] for each in (tested, learned))
    probabilities, right = [np.array(item["p"]) for item in rows], [item["right"] for item in rows]
    inputs, thinking = _inputs(learned), [item["thinking"] for item in rows]
    temperature = fit_temperature(probabilities, right)
    doubting = fit(probabilities, right, COVERAGE, inputs)
    made = fit(probabilities, right, COVERAGE, inputs, thinking)
    hits = [_best(item) == item["right"] for item in items]
    before = [max(item["p"]) for item in items]
    warm, doubtful, after = (
        [float(change(np.maximum(item["p"], 1e-12), item["thinking"]).max()) for item in items]
        for change in (lambda p, _: soften(p, temperature), lambda p, _: doubting.apply(p), made.apply)
    )
    sets = [made.select(np.array(item["p"])) for item in items]
    covered, binomial = cover(tested, sets)
    shares = split_coverages([*tested, *learned], len(learned))
    return CalibratedRow(
        task=task,
        learned=len(learned),
        tested=len(tested),
        questions=len(items),
        accuracy=float(np.mean(hits)),
        error=calibration_error(before, hits),
        temperature=temperature,
        error_warm=calibration_error(warm, hits),
        doubting=(doubting.temperature, doubting.doubt),
        error_doubting=calibration_error(doubtful, hits),
        fitted=(made.temperature, made.doubt, made.caution),
        ranking=(
            rank_right(before, hits),
            rank_right(after, hits),
            rank_right([1.0 if item["thinking"] is None else item["thinking"] for item in items], hits),
        ),
        error_after=calibration_error(after, hits),
        floor=find_floor(after),
        covered=covered,
        binomial=binomial,
        expected=expect_coverage(len(learned), len(tested)),
        splits=Interval(float(np.quantile(shares, 0.025)), float(np.quantile(shares, 0.975))),
        mean_covered=float(np.mean(shares)),
        size=float(np.mean([len(chosen) for chosen in sets])),
    )


def describe_answers(rows: Sequence[Mapping[str, Any]], right: Sequence[bool]) -> dict[str, Any]:
    """Return what the answers to one yes/no question give, from the lines that `foretell decide --out` writes."""
    answers = [next(iter(row["answers"].values())) for row in rows]
    hits = [one["value"] == wanted for one, wanted in zip(answers, right, strict=True)]
    before, after = ([max(one[name], 1 - one[name]) for one in answers] for name in ("probability", "calibrated"))
    covered = [wanted in one["conformal"] for one, wanted in zip(answers, right, strict=True)]
    return {
        "accuracy": float(np.mean(hits)),
        "forwards": float(np.mean([row["forwards"] for row in rows])),
        "error": calibration_error(before, hits),
        "error_after": calibration_error(after, hits),
        "covered": float(np.mean(covered)),
        "size": float(np.mean([len(one["conformal"]) for one in answers])),
    }


def compare(
    start: CertifiedRow, tested: Sequence[Mapping[str, Any]], full: Sequence[Mapping[str, Any]]
) -> CertifiedRow:
    """Return a certified recipe with what it changes on held-out problems."""
    pairs = list(zip(tested, full, strict=True))
    changed = sum(
        any(_best(a) != _best(b) for a, b in zip(one["items"], other["items"], strict=True)) for one, other in pairs
    )
    items, whole = ([item for row in rows for item in row["items"]] for rows in (tested, full))
    hits, full_hits = (np.array([_best(item) == item["right"] for item in each]) for each in (items, whole))
    lost, won = int((full_hits & ~hits).sum()), int((hits & ~full_hits).sum())
    return replace(
        start,
        problems=len(pairs),
        changed=changed,
        interval=exact(changed, len(pairs)),
        forwards=float(np.mean([row["forwards"] for row in tested])),
        full_forwards=float(np.mean([row["forwards"] for row in full])),
        accuracy=float(hits.mean()),
        difference=(won - lost) / len(hits),
        difference_interval=paired_difference(lost, won, len(hits)),
    )


def _best(item: Mapping[str, Any]) -> int:
    return int(np.argmax(item["p"]))

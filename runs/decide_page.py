"""The page of runs/decide.py: what each way to read a slot gives, in numbers, tables and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from foretell.decide.answers import soften
from foretell.decide.calibration import calibration_error, find_quantile, fit, fit_temperature
from foretell.evaluation.intervals import Interval, exact, paired_difference, wilson
from foretell.plots.colours import colours_of
from text_page import percent, points, prose, spread, table

COVERAGE = 0.95  # of conformal sets
GOALS = {"choice": 3.0, "word": 5.0}  # forward passes
SPLITS = 200
DRAWS = 2000  # simulated models per noise floor
LOSS, ERROR, FASTER = 0.005, 0.02, 3.0  # largest loss of accuracy, largest calibration error, least speedup of the head


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
    binomial: Interval  # of the answers tested, around what was found
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
        covered = sum(item["right"] in chosen for item, chosen in zip(items, sets, strict=True))
        more = {
            "temperature": temperature,
            "error_after": calibration_error([float(p.max()) for p in softened], hits.tolist()),
            "covered": covered / len(items),
            "covered_interval": exact(covered, len(items)),
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
        shares.append(float(np.mean([score <= bound + 1e-12 for part in tested for score in part])))
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
    covered = sum(item["right"] in chosen for item, chosen in zip(items, sets, strict=True))
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
        covered=covered / len(items),
        binomial=exact(covered, len(items)),
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


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the page shows."""

    rows: Sequence[Row]
    clocks: Mapping[str, Mapping[str, float]]
    heads: Sequence[Mapping[str, float]]
    calibrated: Sequence[CalibratedRow]
    certified: Sequence[CertifiedRow]
    command: Mapping[str, Any] | None
    calibration: int  # problems that the rows' temperatures and quantiles were learned from


def describe(page: Page) -> list[str]:
    """Return the lines of the page."""
    rows, clocks, heads, calibration = page.rows, page.clocks, page.heads, page.calibration
    lines = ["# Typed decisions: how many readings a label needs", ""]
    lines.append(
        prose(
            "`engine.decide` on the bundled model and its tasks, held-out problems, independent draws: `choice` (four",
            "letters), `yes_no` (is the right range one of the first two?), `word` (integers from 0 to 99),",
            "`sudoku` (every blank cell is a choice of 1 to 4, all cells on one canvas; its intervals treat cells as",
            "independent, which those of one puzzle are not).",
            f"In the tables of ways, temperature (`T`) and conformal quantile ({COVERAGE:.0%}) were learned from",
            f"{calibration} other problems, decoded in the same way; the interval of the coverage is that of the test",
            f"problems alone, and `over splits` is the mean of {SPLITS} random splits. A conformal set can",
            "be empty. The clock counts times faster than full decoding on the same problems, in one",
            "process. Recipes were chosen on other problems. Decisions on natural language were measured on no model.",
            "Made by `python runs/decide.py`.",
        )
    )
    lines += ["", "## Goals", "", *_goals(page)]
    for task in dict.fromkeys(row.task for row in rows):
        lines += _describe_task([row for row in rows if row.task == task], clocks[task])
    lines += [*_describe_certified(page.certified), *_describe_command(page.command)]
    lines += _describe_calibration(page.calibrated)
    lines += ["", "## The head", ""]
    lines.append(
        prose(
            "Logits of all tokens against those of 26 labels, random weights with LLaDA's shape (126,464 tokens, 4096",
            "wide, float32), one thread, the fastest of seven calls.",
        )
    )
    lines += table(
        ("positions", "all tokens (ms)", "labels (ms)", "times less"),
        [
            (
                str(int(one["positions"])),
                f"{one['all']:.1f}",
                f"{one['labels']:.2f}",
                f"{one['all'] / one['labels']:.0f}",
            )
            for one in heads
        ],
        words=0,
    )
    return lines


def _goals(page: Page) -> list[str]:
    """Return one line per goal: met or not, and by which row."""
    rows, heads = page.rows, page.heads
    lines = []
    for task, most in GOALS.items():
        mine = [row for row in rows if row.task == task and row.forwards <= most]
        if mine:
            best = max(mine, key=lambda row: row.difference)
            met = "met" if best.difference >= -LOSS else "not met"
            lines.append(
                f"- {task}, within 0.5 points of full decoding at {most:g} forwards or fewer: {met}; `{best.way}` "
                f"{100 * best.difference:+.1f} points at {best.forwards:.2f} forwards."
            )
    for one in page.calibrated:
        met = "met" if one.error_after <= ERROR else "not met"
        lines.append(
            f"- {one.task}, calibration error at most {ERROR} after calibration (`default`): {met}; {one.error:.3f} "
            f"before, {one.error_warm:.3f} after temperature alone, {one.error_after:.3f} after all."
        )
        low, high = one.binomial
        expected = one.expected if one.questions == one.tested else one.splits
        lines.append(
            f"- {one.task}, coverage of {COVERAGE:.0%} within its interval (`default`): found {percent(one.covered)}; "
            f"its binomial interval {spread(low, high)}: {'met' if low <= COVERAGE <= high else 'not met'}; the "
            f"interval that counts the random quantile {spread(*expected)}: "
            f"{'met' if expected[0] <= one.covered <= expected[1] else 'not met'}."
        )
    for held in page.certified:
        if held.recipe is not None:
            low, _ = held.interval
            lines.append(
                f"- {held.task}, certified at {held.risk:.0%}: {held.changed} of {held.problems} held-out decisions "
                f"changed ({spread(*held.interval)}), {'above' if low > held.risk else 'which does not contradict'} "
                "the promise."
            )
    least = min(one["all"] / one["labels"] for one in heads)
    lines.append(f"- Head at least {FASTER:g}x less: {'met' if least >= FASTER else 'not met'}; {least:.0f}x at least.")
    return lines


def _describe_task(rows: Sequence[Row], clock: Mapping[str, float]) -> list[str]:
    first = rows[0]
    answers = "" if first.questions == first.problems else f", {first.questions} questions"
    lines = ["", f"## {first.task} ({first.problems} problems{answers})"]
    headings = (
        "way", "right %", "95% interval", "against full (points)", "changed %", "forwards", "clock", "ECE", "T",
        "ECE after T", "covered %", "interval", "over splits %", "set size",
    )  # fmt: skip
    body = [
        (
            row.way, percent(row.accuracy), spread(*row.interval),
            f"{100 * row.difference:+.1f} ({points(*row.difference_interval)})", percent(row.changed),
            f"{row.forwards:.2f}", f"{clock['full'] / clock[row.way]:.1f}x", f"{row.error:.3f}",
            "-" if row.temperature is None else f"{row.temperature:.2f}",
            "-" if row.error_after is None else f"{row.error_after:.3f}",
            percent(row.covered), "-" if row.covered_interval is None else spread(*row.covered_interval),
            percent(row.mean_covered),
            "-" if row.size is None else f"{row.size:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    lines += table(headings, body, words=1)
    lines += [f"- `{row.way}`: `{row.recipe}`" for row in rows]
    return lines


def _describe_certified(certified: Sequence[CertifiedRow]) -> list[str]:
    """Return the section on early commits at chosen risks."""
    lines = ["", "## Certified at a chosen risk", ""]
    lines.append(
        prose(
            "What `foretell tune --questions` finds: the fastest recipe of which is shown, with 95% confidence, that",
            "it changes at most the allowed share of the decisions of full decoding (an input counts as changed if any",
            "of its answers is another label). Every risk is certified as if it were the only one. The changes are",
            "counted on held-out problems, the first ones of the tables above; their interval is exact (95%).",
        )
    )
    headings = (
        "task", "risk", "pilot, calibration", "certified", "changed", "held out % (95%)", "forwards", "full",
        "right %", "against full (points)",
    )  # fmt: skip
    body = []
    for one in certified:
        start = (one.task, f"{one.risk:.0%}", f"{one.pilot}, {one.calibration}")
        if one.recipe is None:
            body.append((*start, "nothing", "-", "-", "-", "-", "-", "-"))
            continue
        body.append(
            (
                *start, f"{one.speedup:.2f}x", f"{one.changed} of {one.problems}",
                f"{percent(one.changed / one.problems)} ({spread(*one.interval)})", f"{one.forwards:.2f}",
                f"{one.full_forwards:.2f}", percent(one.accuracy),
                f"{100 * one.difference:+.1f} ({points(*one.difference_interval)})",
            )
        )  # fmt: skip
    lines += table(headings, body, words=3)
    lines += [f"- {one.task} at {one.risk:.0%}: `{one.recipe}`" for one in certified if one.recipe is not None]
    return lines


def _describe_command(command: Mapping[str, Any] | None) -> list[str]:
    """Return the section on the command line, if it was run."""
    if command is None:
        return []
    lines = ["", "## The command", "", "```", command["tune"], command["decide"], "```", ""]
    lines.append(
        prose(
            f"{command['rows']} inputs with answers ({command['pilot']} for the search), {command['seconds']:.0f}",
            f"seconds of processor time: {command['says']} Recipe: `{command['recipe']}`. Calibration: temperature",
            f"{command['temperature']:.2f}, doubt {command['doubt']:.3f}, caution {command['caution']:.2f}.",
            f"On {command['fresh']} fresh inputs:",
            f"{percent(command['accuracy'])}% right at {command['forwards']:.2f} forwards, calibration error",
            f"{command['error']:.3f} before and {command['error_after']:.3f} after calibration, conformal sets of",
            f"{command['size']:.2f} labels cover {percent(command['covered'])}% ({spread(*command['expected'])} is",
            "expected).",
        )
    )
    return lines


def _describe_calibration(calibrated: Sequence[CalibratedRow]) -> list[str]:
    """Return the section on probabilities and conformal sets."""
    lines = ["", "## Calibration", ""]
    lines.append(
        prose(
            "The default recipe. First a temperature alone, then with doubt, the share of the probability that is",
            "spread evenly over the labels, then with caution, the power with which the least certain thinking token",
            "adds to the doubt; each is 0 unless it makes problems clearly more likely that it was not fitted on, and",
            "the last ECE is that of the calibration which `foretell tune` writes. The floor is the calibration error",
            "that a perfectly calibrated model would show on as many answers with the same confidences: its mean and",
            "95th percentile in simulations. Ranking is how often a right answer scores above a wrong one (AUROC): by",
            "the confidence before and after calibration, and by the least certain thinking token alone.",
        )
    )
    headings = (
        "task", "tested on", "right %", "ECE", "T", "ECE", "T, doubt", "ECE", "T, doubt, caution", "ECE",
        "floor (95%)", "ranking before", "after", "thinking",
    )  # fmt: skip
    body = [
        (
            one.task, f"{one.tested}" if one.questions == one.tested else
            f"{one.tested} ({one.questions} answers)", percent(one.accuracy), f"{one.error:.3f}",
            f"{one.temperature:.2f}", f"{one.error_warm:.3f}", "{:.2f}, {:.3f}".format(*one.doubting),
            f"{one.error_doubting:.3f}", "{:.2f}, {:.3f}, {:.2f}".format(*one.fitted), f"{one.error_after:.3f}",
            f"{one.floor[0]:.3f} ({one.floor[1]:.3f})",
            *("-" if rank is None else f"{rank:.3f}" for rank in one.ranking),
        )
        for one in calibrated
    ]  # fmt: skip
    lines += table(headings, body, words=2)
    lines.append(
        prose(
            "Conformal sets: with n rows to learn from, the coverage of the quantile is itself random (a Beta",
            "distribution), so the count on test problems is beta-binomial if every problem has one answer. The",
            "answers of one Sudoku depend on each other; there, the middle 95% of random splits of the problems count.",
        )
    )
    titles = ("task", "covered %", "binomial (95%)", "beta-binomial around 95%", "splits, middle 95%", "mean", "size")
    sets = [
        (
            one.task, percent(one.covered), spread(*one.binomial),
            spread(*one.expected) if one.questions == one.tested else "-", spread(*one.splits),
            percent(one.mean_covered), f"{one.size:.2f}",
        )
        for one in calibrated
    ]  # fmt: skip
    return lines + table(titles, sets, words=1)


def plot(rows: Sequence[Row]) -> Figure:
    """Draw accuracy against forward passes, one panel per task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    figure: Figure = plt.figure(figsize=(3.2 * len(tasks), 3.6), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task, colour in zip(panels, tasks, colours_of(tasks).values(), strict=False):
        mine = [row for row in rows if row.task == task]
        axes.axhline(100 * mine[-1].accuracy, color="0.7", linewidth=0.8)
        for row in mine:
            axes.plot(row.forwards, 100 * row.accuracy, "o", color=colour, markersize=4)
            axes.annotate(row.way, (row.forwards, 100 * row.accuracy), fontsize=6, rotation=30, color="0.3")
        axes.set(xscale="log", xlabel="forward passes per problem", title=task)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("right answers (%)")
    return figure

"""The report of a tuning, stored in the tuned file: what was tried, the frontier, groups, and other sample sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretell.certify.betting import Array
from foretell.certify.decode_store import DecodeStore
from foretell.certify.ladders import TOLERANCES
from foretell.certify.pilot import PilotResult, Tried
from foretell.certify.risk import next_useful
from foretell.certify.search import LadderSearch, RiskGoal, RungResult, predict_speedup, risk_interval, tabulate_trials
from foretell.engine.masked_text import MaskedText
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import LABEL
from foretell.evaluation.records import Record
from foretell.policies.stop.never import Never
from foretell.recipes.presets import parse

if TYPE_CHECKING:
    from foretell.certify.tune import Tuning

SIZES = (300, 500, 1000, 2000, 3000, 5000, 10_000)  # calibration sets to plan with
PARTS = 3  # groups of equal size by length or exit step


def make_report(
    tuning: Tuning,
    pilot: PilotResult,
    search: LadderSearch,
    results: Sequence[RungResult],
    full: Sequence[Record],
    delta: float,
) -> dict[str, Any]:
    """Return the tables of a tuning, ready for JSON."""
    goal, chosen = tuning.goal, search.fastest
    rung = None if chosen is None else chosen.rung
    return {
        "scale": _scale_table(pilot),
        "tried": [_tried_row(one, tuning.store) for one in pilot.tried],
        "rounds": [{"examples": count, "stacks": list(names)} for count, names in pilot.rounds],
        "frontier": [
            {**row, "recipe": tuning.store.resolve(row["recipe"])} for row in tabulate_trials(search, results, goal)
        ],
        "transfer_alone": None if rung is None else _transfer_alone(tuning, rung, full),
        "groups": [] if rung is None else _groups(tuning, rung, results[search.trials.index(chosen)], full),
        "sizes": _sizes(search, results, pilot.tried[0], goal, delta),
    }


def _scale_table(pilot: PilotResult) -> list[dict[str, float]]:
    """Return the bars at some tolerances, and how certain the model is where it is right."""
    scale = pilot.scale
    rows = []
    for level in range(0, len(TOLERANCES), 4):
        bars = {name: scale.bars[name][level] for name in scale.bars}
        right = {f"{name}_right": scale.right[name][level] for name in scale.right}
        rows.append({"tolerance": TOLERANCES[level], **bars, **right})
    return rows


def _tried_row(one: Tried, store: DecodeStore) -> dict[str, Any]:
    best = int(np.abs(one.speedups - one.expected).argmin())
    return {
        "ladder": one.ladder.name,
        "expected_speedup": one.expected,
        "recipe": one.ladder.rungs[best],
        "stops": parse(store.resolve(one.ladder.rungs[best])).stop != Never(),
        "risk": float(one.losses[best].mean()),
        "speedup": float(one.speedups[best]),
        "examples": one.losses.shape[1],
    }


def _transfer_alone(tuning: Tuning, rung: str, full: Sequence[Record]) -> dict[str, Any]:
    """Return what the certified recipe achieves without its stopping rule, on the calibration set."""
    if parse(tuning.store.resolve(rung)).stop == Never():
        alone, stops = rung, False
    else:
        alone, stops = rung[: rung.rindex(" stop=")], True  # the last one: `against` may name one, too
    found = tuning.measure(alone, full, len(tuning.calibration), "calibration: the transfer alone")
    return {
        "recipe": tuning.store.resolve(alone),
        "stops": stops,
        "risk": float(found.losses.mean()),
        "interval": list(risk_interval(found.losses, tuning.goal)),
        "speedup": found.speedup,
    }


def _groups(tuning: Tuning, rung: str, result: RungResult, full: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the risk by label, prompt or text length, answer length and exit step."""
    bench, goal, examples = tuning.bench, tuning.goal, tuning.calibration
    way, seed = bench.recipes[0], bench.evaluation.seed
    fast = tuning.store.records(rung, examples)
    fills = isinstance(examples[0].prompt, MaskedText)

    def given_tokens(example: Example) -> int:
        request = bench.engine.request(example.prompt, way.template(bench.engine, example, seed))
        return len(request.prompt) + (request.layout.length - request.layout.padding if fills else 0)

    measures: dict[str, list[float]] = {
        "text length" if fills else "prompt length": [given_tokens(one) for one in examples],
        "answer length": [one.response_tokens for one in full],
        "exit step": [one.steps for one in fast],
    }
    labels = [one.data.get(LABEL) for one in examples]
    groups = [
        ("label", label, np.array([one == label for one in labels]))
        for label in sorted({one for one in labels if one is not None})
    ]
    groups += [
        (by, name, members)
        for by, values in measures.items()
        for name, members in split_evenly(np.array(values, dtype=float))
    ]
    return [_group_row(by, name, result.losses[members], goal) for by, name, members in groups]


def _group_row(by: str, name: str, losses: Array, goal: RiskGoal) -> dict[str, Any]:
    low, high = risk_interval(losses, goal)
    mean = float(losses.mean())
    return {
        "by": by,
        "group": name,
        "examples": len(losses),
        "risk": mean,
        "interval": [low, high],
        "above": mean > goal.risk,
        "proven_above": low > goal.risk,
    }


def split_evenly(values: Array) -> list[tuple[str, Array]]:
    """Return up to three groups of about equal size by value, each as a name and a mask. Equal values stay together."""
    edges = sorted({float(one) for one in np.quantile(values, np.arange(1, PARTS) / PARTS, method="lower")})
    groups, low = [], -np.inf
    for high in (*edges, np.inf):
        members = (values > low) & (values <= high)
        if members.any():
            first, last = values[members].min(), values[members].max()
            groups.append((f"{first:g}" if first == last else f"{first:g} to {last:g}", members))
        low = high
    return groups


def _sizes(
    search: LadderSearch, results: Sequence[RungResult], best: Tried, goal: RiskGoal, delta: float
) -> list[dict[str, Any]]:
    """Return the speedup to expect from calibration sets of other sizes.

    It is predicted from this one or, if no rung was decoded on all of it, from the best ladder of the pilot.
    """
    count = results[0].planned
    whole = [(trial, one) for trial, one in zip(search.trials, results, strict=True) if len(one.losses) == count]
    losses = np.array([one.losses for _, one in whole]) if whole else best.losses
    speedups = np.array([trial.speedup for trial, _ in whole]) if whole else best.speedups
    useful = [] if goal.measure.graded else [next_useful(count, goal.risk, 1 - delta)]
    predict: Callable[[int], float] = lambda size: predict_speedup(losses, speedups, size, goal, delta)  # noqa: E731
    sizes = sorted({*SIZES, max(1, count // 2), count, *useful})
    return [{"examples": size, "expected_speedup": predict(size)} for size in sizes]

"""Climbs over pools of stored decodings: speed against requests seen, and what each rung costs.

    python runs/climb.py                                                    # four bundled tasks, 400 problems each
    FORETELL_DATA=data python runs/climb.py --models models --tasks word choice sudoku countdown sapiens-vh

Each problem of a pool is decoded once in full and once with every rung of the ladder that a pilot places, as `generate
--risk` does. Requests are then drawn from the pool with replacement, so that long streams cost nothing and the risk of
every rung is known: it is its mean loss in the pool.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from antibody_models import CHAINS, find_model
from foretell.certify.audit import AuditState, Entry, Header
from foretell.certify.climb import EXPLORE, PILOT, REST, place_ladder
from foretell.certify.losses import find_loss
from foretell.certify.supervise import Subject, can_replay
from foretell.engine.completion import Completion
from foretell.engine.engine import Engine, load
from foretell.engine.options import RequestTemplate
from foretell.engine.prompt_files import FilePrompt
from foretell.errors import RequestError
from foretell.evaluation.benchmark import make_independent
from foretell.evaluation.catalogue import benchmark_named
from foretell.plots.curves import COLOURS
from foretell.storage import load_json, make_folder, write_file
from page import prose, publish, table
from real_models import read_problems
from results_page import RESULTS
from shared import ROOT, SEED, TASKS, run_script

REQUESTS = 20_000  # per climb
CLIMBS = 20  # per setting
POINTS = 40  # of a curve
RISKS, GRADED_RISKS = (0.01, 0.02), (0.03, 0.05)
ANTIBODIES = ("sapiens-vh", "sapiens-vl")
MASKED = 0.5  # share of residues


@dataclass(frozen=True, slots=True)
class Pool:
    """Decoded problems: per problem, the loss of rungs 1, 2, ... and the forwards of rungs 0, 1, ..."""

    name: str
    loss: str
    graded: bool
    rungs: list[str]
    free: list[int]  # rungs that are replayed
    losses: list[list[float]]
    forwards: list[list[int]]


@dataclass(frozen=True, slots=True)
class Setting:
    risk: float
    explore: float = EXPLORE
    ahead: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The mean of many climbs."""

    pool: str
    setting: Setting
    requests: list[int]  # at which the curves are measured
    served: list[float]  # full decoding's forwards divided by those of the answers, for requests up to there
    total: list[float]  # the same, with what audits cost
    rung: float  # in use at the end
    best: int  # the last rung before the first with a risk above eps
    wrong: float  # share of climbs that ever used a rung with a risk above eps
    earned: list[float | None]  # median number of requests after which each rung was taken, if half of the climbs did


def make_pool(engine: Engine, name: str, asked: Sequence[FilePrompt], full: RequestTemplate, loss: str) -> Pool:
    """Decode a pool, after a pilot on its first problems, which are not part of it."""
    subject = Subject(engine, find_loss(loss), full.fills)

    def decode(template: RequestTemplate, some: Sequence[FilePrompt]) -> list[Completion]:
        done = dict(engine.generate_iter([(subject.prompt_of(one), template) for one in some], batch_size=32))
        return [done[at] for at in range(len(some))]

    pilot, rest = asked[:PILOT], asked[PILOT:]
    seen = list(zip(pilot, decode(replace(full, trace=True), pilot), strict=True))
    recipes = place_ladder(subject, seen, full, EXPLORE)
    templates = [replace(full, recipe=recipe) for recipe in recipes]
    free = [rung for rung, recipe in enumerate(recipes, 1) if can_replay(recipe, full.recipe)]
    columns = [decode(replace(full, trace=bool(free)), rest)]
    for rung, template in enumerate(templates, 1):
        if rung in free:
            traced = [
                (one, done, done.trace) for one, done in zip(rest, columns[0], strict=True) if done.trace is not None
            ]
            columns.append([subject.replay(one, done, trace, template) for one, done, trace in traced])
        else:
            columns.append(decode(template, rest))
        print(f"{name}: rung {rung} of {len(templates)}, {template.recipe}", flush=True)
    rows = list(zip(rest, *columns, strict=True))
    return Pool(
        name,
        subject.loss.name,
        subject.loss.graded,
        [str(recipe) for recipe in recipes],
        free,
        [[subject.measure(one, done, fast) for fast in more] for one, done, *more in rows],
        [[one.forwards for one in more] for _, *more in rows],
    )


def simulate(pool: Pool, setting: Setting, requests: int, seed: int) -> tuple[Any, AuditState, dict[int, int]]:
    """Return forwards [requests, 3] (full decoding, answers, audits), the last state, and when rungs were taken."""
    rng = np.random.default_rng(seed)
    header = Header(
        model="", model_sha256="", dtype=None, risk=setting.risk, confidence=0.95, loss=pool.loss, graded=pool.graded,
        share=setting.explore, rest=REST, against="full", rungs=pool.rungs, climbs=True, seed="",
    )  # fmt: skip
    state, taken = AuditState(header), dict[int, int]()
    costs = np.zeros((requests, 3))
    for number, at in enumerate(rng.integers(len(pool.losses), size=requests)):
        forwards, used, chosen = pool.forwards[at], state.rung, rng.random() < state.share
        explored = state.explored(setting.ahead)
        in_full = chosen or used == 0
        live = {*explored, *([used] if used else [])} - set(pool.free) if chosen else set[int]()
        wanted = live | {rung for rung in explored if rung in pool.free and in_full}
        if chosen and used:
            wanted.add(used)
        extra = sum(forwards[rung] for rung in live if rung != used) + (forwards[0] if chosen and used else 0)
        costs[number] = forwards[0], forwards[used], extra
        if not wanted:
            continue
        losses = [loss if rung in wanted else None for rung, loss in enumerate(pool.losses[at], 1)]
        for event in state.add(Entry(number, str(number), None, used, losses, [*forwards])):
            if event.kind == "up":
                taken.setdefault(event.rung + 1, number + 1)
    return costs, state, taken


def run_climbs(pool: Pool, setting: Setting, requests: int, climbs: int) -> Result:
    """Return the mean over many climbs on streams from one pool."""
    risks = np.mean(pool.losses, axis=0)
    best = int(np.cumprod(risks <= setting.risk).sum())
    points = np.unique(np.geomspace(50, requests, POINTS).astype(int))
    total, rungs, wrong, taken = np.zeros((requests, 3)), 0.0, 0.0, list[dict[int, int]]()
    for seed in range(climbs):
        costs, state, when = simulate(pool, setting, requests, SEED + seed)
        total += costs.cumsum(axis=0)
        rungs += state.rung / climbs
        wrong += any(rung > best for rung in when) / climbs
        taken.append(when)
    at = points - 1
    numbers = range(1, len(pool.rungs) + 1)
    earned = [sorted(when.get(rung, requests + 1) for when in taken)[climbs // 2] for rung in numbers]
    return Result(
        pool.name,
        setting,
        points.tolist(),
        (total[at, 0] / total[at, 1]).round(3).tolist(),
        (total[at, 0] / (total[at, 1] + total[at, 2])).round(3).tolist(),
        round(rungs, 2),
        best,
        round(wrong, 3),
        [None if one > requests else one for one in earned],
    )


def plot(results: Sequence[Result]) -> Figure:
    figure: Figure = plt.figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for colour, one in zip(COLOURS, results, strict=False):
        axes.plot(one.requests, one.served, color=colour, label=f"{one.pool}, answers")
        axes.plot(one.requests, one.total, color=colour, linestyle="--", label=f"{one.pool}, with audits")
    axes.set(xscale="log", xlabel="requests seen", ylabel="times fewer forwards than full decoding, so far")
    axes.legend(fontsize=8, frameon=False)
    return figure


def describe(pools: Sequence[Pool], results: Sequence[Result]) -> list[str]:
    """Return the lines of the page."""
    size = ", ".join(f"{pool.name} {len(pool.losses)}" for pool in pools)
    lines = ["# Speed that is earned: climbs over pools of decoded problems", ""]
    lines.append(
        prose(
            f"Streams of {results[0].requests[-1]:,} requests, drawn from pools of decoded problems ({size}),",
            f"as `generate --risk` would see them: the mean of {CLIMBS} climbs with 95% confidence.",
            f"A pilot of {PILOT} further requests placed the ladders. After the climb, {REST:.0%} are audited.",
            '"Answers" counts the forward passes of the answers, "with audits" all of them, over the whole stream.',
            "The risk of a rung is its mean loss in its pool, so it is known which rungs are bad for these streams.",
        )
    )
    heads = (
        "pool",
        "loss",
        "risk",
        "explore",
        "ahead",
        "answers",
        "with audits",
        "last rung",
        "good rungs",
        "bad rung taken",
    )
    rows = [
        (
            one.pool, next(pool.loss for pool in pools if pool.name == one.pool), f"{one.setting.risk:.1%}",
            f"{one.setting.explore:g}", "all" if one.setting.ahead is None else str(one.setting.ahead),
            f"{one.served[-1]:.2f}x", f"{one.total[-1]:.2f}x", f"{one.rung:g}", str(one.best), f"{one.wrong:.0%}",
        )
        for one in results
    ]  # fmt: skip
    lines += table(heads, rows)
    for pool in pools:
        mine = [one for one in results if one.pool == pool.name and one.setting == Setting(one.setting.risk)]
        risks, forwards = np.mean(pool.losses, axis=0), np.sum(pool.forwards, axis=0)
        lines += ["", f"## {pool.name}"]
        lines += table(
            ("rung", "risk", "fewer forwards", *(f"requests until taken at {one.setting.risk:.1%}" for one in mine)),
            [
                (
                    f"`{recipe}`",
                    f"{risks[rung]:.2%}",
                    f"{forwards[0] / forwards[rung + 1]:.2f}x",
                    *("" if one.earned[rung] is None else f"{one.earned[rung]:,}" for one in mine),
                )
                for rung, recipe in enumerate(pool.rungs)
            ],
            words=1,
        )
    return lines


def read_pool(options: argparse.Namespace, name: str) -> Pool:
    """Return a pool, from its file if it has been decoded before."""
    file = options.work / f"{name}-{options.limit}.json"
    if file.is_file():
        return Pool(**load_json(file, "pool"))
    if name in ANTIBODIES:
        if options.data is None:
            raise RequestError("give the folder with antibodies/therapeutic.tsv as --data, or set FORETELL_DATA")
        engine = load(find_model(name, options.models, options.work))
        found = [one.text for one in read_problems(CHAINS[name], MASKED, PILOT + options.limit, Path(options.data))]
        asked, full, loss = [FilePrompt(*one) for one in enumerate(found)], engine.fill_template(), "tokens"
    else:
        engine = load(options.model)
        examples = make_independent(benchmark_named(name)).examples(None, PILOT + options.limit, SEED)
        asked = [FilePrompt(number, str(one.prompt)) for number, one in enumerate(examples)]
        full, loss = engine.template(layout=name), "answer"
    pool = make_pool(engine, name, asked, full, loss)
    make_folder(options.work)
    write_file(file, json.dumps(asdict(pool)))
    return pool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="for tasks")
    parser.add_argument("--models", type=Path, help="folder of antibody models")
    parser.add_argument(
        "--data", default=os.environ.get("FORETELL_DATA"), help="folder with antibodies/therapeutic.tsv"
    )
    parser.add_argument("--tasks", nargs="+", default=TASKS, help=f"tasks, and {', '.join(ANTIBODIES)}")
    parser.add_argument("--limit", type=int, default=400, help="problems per pool")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="per climb")
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "climb", help="folder for pools")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args()
    options.own = False
    make_folder(options.out)
    pools = [read_pool(options, name) for name in options.tasks]
    results = []
    for pool in pools:
        risks = GRADED_RISKS if pool.graded else RISKS
        settings = [*map(Setting, risks), Setting(risks[0], ahead=1), Setting(risks[0], explore=0.05)]
        results += [run_climbs(pool, one, options.requests, CLIMBS) for one in settings]
    shown = [next(one for one in results if one.pool == pool.name) for pool in pools]
    numbers = {"pools": {pool.name: len(pool.losses) for pool in pools}, "climbs": [asdict(one) for one in results]}
    publish("climb", describe(pools, results), numbers, options, plot(shown))


if __name__ == "__main__":
    run_script(main)

"""Climbs over pools of stored decodings: speed against requests seen, and what each rung costs.

    python runs/climb.py                                                    # four bundled tasks, 400 problems each
    FORETELL_DATA=data python runs/climb.py --models models --tasks word choice sudoku countdown sapiens-vh

Each problem of a pool is decoded once in full and once with every rung of the ladder that a pilot places, as `generate
--risk` does. Requests are then drawn from the pool with replacement, so that long streams cost nothing and the risk of
every rung is known: it is its mean loss in the pool. Pools are stored, so a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from foretell.plots.colours import colours_of
from foretell.storage import load_json, make_folder, write_file
from page import Numbers, publish, times
from real_models import read_problems
from results_page import RESULTS
from shared import ROOT, SEED, TASKS, run_script

REQUESTS = 20_000  # per climb
CLIMBS = 50  # per setting
CONFIDENCE = 0.95
POINTS = 40  # of a curve
LATE = 0.1  # the last share of a stream
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

    def only(self, *, stops: bool) -> Pool:
        """Return the pool with the rungs of the ladder that are stopping rules, or with the others."""
        rungs = [rung for rung in range(1, len(self.rungs) + 1) if (rung in self.free) == stops]
        return replace(
            self,
            rungs=[self.rungs[rung - 1] for rung in rungs],
            free=[at for at, rung in enumerate(rungs, 1) if rung in self.free],
            losses=[[row[rung - 1] for rung in rungs] for row in self.losses],
            forwards=[[row[rung] for rung in (0, *rungs)] for row in self.forwards],
        )


@dataclass(frozen=True, slots=True)
class Setting:
    risk: float
    explore: float = EXPLORE
    ahead: int | None = None
    ladder: str = "all"  # rungs; or "stop", "transfers"


@dataclass(frozen=True, slots=True)
class Result:
    """The mean of many climbs."""

    pool: str
    setting: Setting
    requests: list[int]  # at which the curves are measured
    served: list[float]  # full decoding's forwards divided by those of the answers, for requests up to there
    total: list[float]  # the same, with what audits cost
    late: tuple[float, float]  # both for the last requests only
    used_bad: float  # share of climbs that ever used a rung with a risk above eps
    earned_bad: float  # share of climbs that ever earned one
    alarms: float  # per climb
    used: int  # the rung that most climbs used at the end
    earned: list[float | None]  # median number of requests after which each rung was earned, if half of the climbs did


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


@dataclass(frozen=True, slots=True)
class Climbed:
    """One climb."""

    costs: Any  # forwards [requests, 3]: full decoding, answers, audits
    used: set[int]  # rungs
    last: int  # the rung in use at the end
    earned: dict[int, int]  # requests after which rungs were earned
    alarms: int


def simulate(pool: Pool, setting: Setting, requests: int, seed: int) -> Climbed:
    """Climb on a stream from a pool, as `Climb` does it."""
    rng = np.random.default_rng(seed)
    header = Header(
        model="", model_sha256="", dtype=None, risk=setting.risk, confidence=CONFIDENCE, loss=pool.loss,
        graded=pool.graded, share=setting.explore, rest=REST, against="full", rungs=pool.rungs, climbs=True, seed="",
    )  # fmt: skip
    state, earned, all_used = AuditState(header), dict[int, int](), set[int]()
    costs = np.zeros((requests, 3))
    for number, at in enumerate(rng.integers(len(pool.losses), size=requests)):
        forwards, used, chosen = pool.forwards[at], state.rung, rng.random() < state.share
        all_used.add(used)
        explored = set(state.explored(setting.ahead)) - {used}
        live = explored - set(pool.free) if chosen else set[int]()
        replayed = explored & set(pool.free) if chosen or used == 0 else set[int]()
        extra = sum(forwards[rung] for rung in live) + (forwards[0] if chosen and used else 0)
        costs[number] = forwards[0], forwards[used], extra
        wanted = live | replayed | ({used} if chosen and used else set[int]())
        if not wanted:
            continue
        losses = [loss if rung in wanted else None for rung, loss in enumerate(pool.losses[at], 1)]
        taken = [one if rung in {0, *wanted} else None for rung, one in enumerate(forwards)]
        for event in state.add(Entry(number, str(number), None, used, losses, taken)):
            if event.kind == "earned":
                earned[event.rung] = number + 1
    alarms = sum(event.kind == "alarm" for event in state.events)
    return Climbed(costs, all_used, state.rung, earned, alarms)


def run_climbs(pool: Pool, setting: Setting, requests: int, climbs: int) -> Result:
    """Return the mean over many climbs on streams from one pool."""
    if setting.ladder != "all":
        pool = pool.only(stops=setting.ladder == "stop")
    bad = {rung for rung, risk in enumerate(np.mean(pool.losses, axis=0), 1) if risk > setting.risk + 1e-9}
    made = [simulate(pool, setting, requests, SEED + seed) for seed in range(climbs)]
    costs = np.sum([one.costs for one in made], axis=0)
    total = costs.cumsum(axis=0)
    points = np.unique(np.geomspace(50, requests, POINTS).astype(int))
    at, late = points - 1, costs[-int(LATE * requests) :].sum(axis=0)
    numbers = range(1, len(pool.rungs) + 1)
    earned = [sorted(one.earned.get(rung, requests + 1) for one in made)[climbs // 2] for rung in numbers]
    print(f"{pool.name}: {climbs} climbs, {setting}", flush=True)
    return Result(
        pool=pool.name,
        setting=setting,
        requests=points.tolist(),
        served=(total[at, 0] / total[at, 1]).round(3).tolist(),
        total=(total[at, 0] / (total[at, 1] + total[at, 2])).round(3).tolist(),
        late=(round(late[0] / late[1], 3), round(late[0] / (late[1] + late[2]), 3)),
        used_bad=round(sum(not bad.isdisjoint(one.used) for one in made) / climbs, 4),
        earned_bad=round(sum(not bad.isdisjoint(one.earned) for one in made) / climbs, 4),
        alarms=round(sum(one.alarms for one in made) / climbs, 3),
        used=Counter(one.last for one in made).most_common(1)[0][0],
        earned=[None if one > requests else one for one in earned],
    )


def draw(numbers: Numbers) -> Figure:
    """Draw one line per pool: on the left for answers, on the right with audits."""
    every = read_results(numbers)
    results = [next(one for one in every if one.pool == pool) for pool in numbers["pools"]]
    figure: Figure = plt.figure(figsize=(10, 4.4), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, title, curves in zip(
        both,
        ("forwards of the answers", "with the forwards of audits"),
        ([one.served for one in results], [one.total for one in results]),
        strict=True,
    ):
        axes.axhline(1, color="0.6", linewidth=0.8)
        heights = spread_labels([curve[-1] for curve in curves])
        looks = colours_of(one.pool for one in results).values()
        for colour, one, curve, height in zip(looks, results, curves, heights, strict=True):
            axes.plot(one.requests, curve, color=colour)
            name = f"{one.pool}, risk {one.setting.risk:.0%}: {curve[-1]:.1f}x"
            axes.annotate(name, (one.requests[-1] * 1.15, height), color=colour, va="center", fontsize=8)
        axes.set(xscale="log", yscale="log", xlabel="requests seen after the pilot", title=title)
        axes.set_xlim(right=results[0].requests[-1] * 20)  # room for the names
        axes.set_xticks([100, 1000, 10_000], ["100", "1,000", "10,000"])
        ticks = [0.5, 1, 2, 4, 8]
        axes.set_yticks(ticks, [f"{tick:g}x" for tick in ticks])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylabel("times fewer than full decoding, so far")
    return figure


def spread_labels(ends: Sequence[float], apart: float = 1.13) -> list[float]:
    """Return heights on a log axis for the labels of lines that end at these heights, so that none overlap."""
    found, last = dict[int, float](), 0.0
    for at in sorted(range(len(ends)), key=lambda at: ends[at]):
        last = found[at] = max(ends[at], last * apart)
    return [found[at] for at in range(len(ends))]


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of all tables, and how often a bad rung was used."""
    results, climbs, pools = read_results(numbers), numbers.get("runs", CLIMBS), numbers["pools"]
    worst = max(results, key=lambda one: one.used_bad)
    losses = numbers["losses"]
    parts, delayed = _parts(pools, results)
    return {
        "sizes": ", ".join(f"{name} {count}" for name, count in pools.items()),
        "requests": results[0].requests[-1],
        "climbs": climbs,
        "total": climbs * len(results),
        "bad": sum(round(one.used_bad * climbs) for one in results),
        "worst": worst.used_bad,
        "confidence": CONFIDENCE,
        "pilot": PILOT,
        "late": LATE,
        "rest": REST,
        "rows": [_cells(losses[one.pool], one) for one in results if one.setting.ladder == "all"],
        "part_rows": parts,
        "delayed": " and ".join(delayed),
        "ladders": [_ladder(name, rungs, results) for name, rungs in numbers["ladders"].items()],
    }


def read_results(numbers: Numbers) -> list[Result]:
    return [Result(**one | {"setting": Setting(**one["setting"])}) for one in numbers["climbs"]]


def _cells(loss: str, one: Result) -> list[str]:
    setting = one.setting
    speeds = (one.served[-1], one.total[-1], *one.late)
    return [
        one.pool, loss, f"{setting.risk:.0%}", f"{setting.explore:g}",
        "all" if setting.ahead is None else str(setting.ahead), *map(times, speeds), str(one.used),
        f"{one.earned_bad:.1%}", f"{one.used_bad:.1%}", f"{one.alarms:.2f}",
    ]  # fmt: skip


def _parts(pools: Iterable[str], results: Sequence[Result]) -> tuple[list[list[str]], list[str]]:
    """Return what the stopping rule and the transfers add, and the pools on which transfers alone answer faster."""
    rows, delayed = [], []
    for pool in pools:
        risk = next(one.setting.risk for one in results if one.pool == pool)
        mine = [one for one in results if one.pool == pool and one.setting == Setting(risk, ladder=one.setting.ladder)]
        found = {one.setting.ladder: f"{one.served[-1]:.2f}x, {one.total[-1]:.2f}x" for one in mine}
        speed = {one.setting.ladder: one.served[-1] for one in mine}
        delayed += [pool] if speed.get("transfers", 0.0) > speed["all"] else []
        parts = [found.get(name, "") for name in ("stop", "transfers", "all")]
        rows.append([pool, f"{risk:.0%}", *(parts if "stop" in found else ["no such rung", parts[2], parts[2]])])
    return rows, delayed


def _ladder(name: str, rungs: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> dict[str, Any]:
    """Return a table of a ladder: risk, speed, and the requests that each rung costs."""
    mine = [one for one in results if one.pool == name and one.setting == Setting(one.setting.risk)]
    earned = [["-" if count is None else f"{count:,}" for count in one.earned] for one in mine]
    rows = [
        [
            str(at + 1),
            f"`{rung['recipe']}`",
            f"{rung['risk']:.2%}",
            times(rung["speedup"]),
            *(one[at] for one in earned),
        ]
        for at, rung in enumerate(rungs)
    ]
    costs = (f"requests until earned at {one.setting.risk:.0%}" for one in mine)
    return {"name": name, "headings": " | ".join(["rung | recipe | risk | fewer forwards", *costs]), "rows": rows}


def describe_rungs(pool: Pool) -> list[dict[str, Any]]:
    """Return the recipe, the risk and the speedup of each rung."""
    risks, forwards = np.mean(pool.losses, axis=0), np.sum(pool.forwards, axis=0)
    return [
        {"recipe": recipe, "risk": float(risks[at]), "speedup": float(forwards[0] / forwards[at + 1])}
        for at, recipe in enumerate(pool.rungs)
    ]


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
    parser.add_argument("--climbs", type=int, default=CLIMBS, help="per setting")
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
        settings += [Setting(risks[0], ladder=part) for part in ("stop", "transfers") if pool.free]
        results += [run_climbs(pool, one, options.requests, options.climbs) for one in settings]
    models = " --models DIR --data DIR" if any(pool.name in ANTIBODIES for pool in pools) else ""
    numbers = {
        "command": f"python runs/climb.py --tasks {' '.join(pool.name for pool in pools)}{models}",
        "runs": options.climbs,
        "pools": {pool.name: len(pool.losses) for pool in pools},
        "losses": {pool.name: pool.loss for pool in pools},
        "ladders": {pool.name: describe_rungs(pool) for pool in pools},
        "climbs": [asdict(one) for one in results],
    }
    publish("climb", numbers, options)


if __name__ == "__main__":
    run_script(main)

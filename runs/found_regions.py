"""Answers found in the draft compared with answers at a fixed place: speed, agreement, risk and the cost of search.

    python runs/found_regions.py             # 1000 held-out problems per task; decodings are shared with other scripts
    python runs/found_regions.py --limit 50  # a quick run

Every task is decoded once in full, word problems and choices also without their suffix; Prophet is replayed on the
traces with every region. The first few problems of each task are also decoded live, to check the replay and to time
a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from statistics import quantiles
from typing import Any, Literal

from matplotlib.figure import Figure

from foretell.certify.replay import Study
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Benchmark
from foretell.evaluation.benchmarks.without_suffix import ANNOUNCEMENT, WithoutSuffix, has_suffix
from foretell.evaluation.intervals import Interval, bootstrap, wilson
from foretell.evaluation.records import Record
from foretell.evaluation.report import ReportRow, compare
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.loop.protocols import Region
from foretell.plots.stops import Stopped, plot_stops
from foretell.policies.region.delimiter import Delimiter
from foretell.policies.region.fixed import Fixed
from foretell.policies.region.pattern import Pattern
from foretell.policies.stop.prophet import Prophet
from foretell.recipes.text import format_value
from page import Numbers, number, percent, publish, read_row, spread, times
from shared import benchmark, load_study, make_parser, parse_options, rename, run_script

TASKS = ("word", "word-free", "choice", "choice-free", "sudoku", "countdown")
PUBLIC = ("gsm8k", "gsm8k-free", "mmlu", "mmlu-free")
GAPS: tuple[Literal["mean", "min"], ...] = ("mean", "min")
LIVE = 4  # problems per task decoded live, in one batch
NEVER = "stop.tau=linear(inf,inf)"  # checked at every step, never fires
EVERYTHING = Pattern(r"(?s)\S.*")  # the whole text is the answer


def make_regions(asked: Benchmark) -> dict[str, Region]:
    """Return the regions that can be tried on a task; without a pinned suffix there is no fixed one."""
    tried: dict[str, Region] = {} if isinstance(asked, WithoutSuffix) else {"fixed": Fixed()}
    if not has_suffix(asked.inner if isinstance(asked, WithoutSuffix) else asked):
        return tried | {"pattern": EVERYTHING}
    return tried | {"delimiter": Delimiter(ANNOUNCEMENT), "pattern": Pattern(rf"{ANNOUNCEMENT} (\w+)")}


@dataclass(frozen=True, slots=True)
class Result:
    """One stopping rule, compared with full decoding of the same window."""

    row: ReportRow
    speed: Interval  # 95%, of the ratio of steps
    risk: float  # share of answers that differ from full decoding's
    interval: Interval  # Wilson, 95%


@dataclass(frozen=True, slots=True)
class RegionStatistics:
    """When a region was found, over the steps of all decodings, and the cost of the search."""

    first: float  # share of decodings whose first draft has it
    ever: float  # share that has it at some step
    final: float  # share whose final text has it
    settled: tuple[float, float, float]  # share of the budget after which it never moves: quartiles over decodings
    looked: float  # share of steps whose draft differs from the previous one
    microseconds: float  # CPU time per row and step


@dataclass(frozen=True, slots=True)
class Found:
    results: dict[str, Result]  # by region and gap
    seen: dict[str, RegionStatistics]  # by region
    step: dict[str, float]  # CPU milliseconds, by region
    live: int  # live decodings that were also replayed
    equal: int  # how many of those have the same steps and answer


def observe_region(one: Study, region: Region) -> RegionStatistics:
    there, still, looked, taken, rows = [], [], 0, 0.0, 0
    for case in one.cases:
        trace = case.trace
        state = trace.states(region).with_text(draft=trace.tokens)  # a new text, so that no search is cached
        started = time.process_time()
        places = region(state)
        taken, rows = taken + time.process_time() - started, rows + len(places)
        looked += 1 + int((trace.tokens[1:] != trace.tokens[:-1]).any(dim=1).sum())
        there.append(places.any(dim=1))
        moved = (places != places[-1]).any(dim=1).nonzero()
        still.append((int(moved.max()) + 1 if len(moved) else 0) / trace.request.budget)
    low, middle, high = quantiles(still, n=4) if len(still) > 1 else still * 3
    count = len(there)
    return RegionStatistics(
        first=sum(bool(each[0]) for each in there) / count,
        ever=sum(bool(each.any()) for each in there) / count,
        final=sum(bool(each[-1]) for each in there) / count,
        settled=(low, middle, high),
        looked=looked / rows,
        microseconds=1e6 * taken / rows,
    )


def replay_rules(one: Study, tried: Mapping[str, Region], asked: Benchmark) -> dict[str, list[Record]]:
    """Return the records of full decoding and of each region under each gap, by name."""
    made = {"full": rename(one.records, "full")}
    for gap, (place, region) in product(GAPS, tried.items()):
        name = f"{place}, {gap}"
        made[name] = one.replay(name, Prophet(asked.thresholds, reduce=gap), region)
    return made


def summarize(records: Mapping[str, list[Record]]) -> dict[str, Result]:
    rows = compare([record for each in records.values() for record in each], list(records))
    full = sum(record.steps for record in records["full"]) / len(records["full"])
    made = {}
    for row in rows:
        fewest, most = bootstrap([float(record.steps) for record in records[row.recipe]])
        differ = round((1 - row.agreement) * row.pairs)
        speed = Interval(full / most, full / fewest)
        made[row.recipe] = Result(row, speed, differ / row.pairs, wilson(differ, row.pairs))
    return made


def make_recipe(gap: str, region: Region) -> str:
    return f"prophet stop.reduce={gap} region={format_value(region)}"


def decode_live(one: Study, recipe: str) -> dict[str, tuple[int, str | None]]:
    """Decode the first problems live in one batch; return steps and answer by id."""
    way, engine, cases = TaskRecipe.of(recipe, one.bench.benchmark), one.bench.engine, one.cases[:LIVE]
    orders = [(case.example.prompt, way.template(engine, case.example, one.bench.evaluation.seed)) for case in cases]
    made = engine.generate_iter(orders, batch_size=LIVE)
    return {cases[at].example.id: (done.steps, one.bench.benchmark.extract(done)) for at, done in made}


def check_live(one: Study, tried: Mapping[str, Region], records: Mapping[str, list[Record]]) -> tuple[int, int]:
    """Return the number of live decodings, and how many of them have the same steps and answer as the replay."""
    live = equal = 0
    for gap, (place, region) in product(GAPS, tried.items()):
        known = {record.id: (record.steps, record.answer) for record in records[f"{place}, {gap}"]}
        for key, result in decode_live(one, make_recipe(gap, region)).items():
            live, equal = live + 1, equal + (known[key] == result)
    if equal < live - live // 50:  # tolerance: other batches round logits differently
        task = one.bench.evaluation.task
        raise RequestError(f"{task}: only {equal} of {live} live decodings are what the replay says")
    return live, equal


def time_steps(one: Study, tried: Mapping[str, Region]) -> dict[str, float]:
    """Return the CPU milliseconds per step of a batch, with a rule that searches and never fires."""
    recipes = {name: f"{make_recipe('mean', region)} {NEVER}" for name, region in tried.items()}
    return {name: _milliseconds(one, text) for name, text in recipes.items()}


def _milliseconds(one: Study, recipe: str) -> float:
    started = time.process_time()
    made = decode_live(one, recipe)
    return 1000 * (time.process_time() - started) / max(steps for steps, _ in made.values())


def measure(task: str, options: argparse.Namespace) -> Found:
    asked = benchmark(task, options)
    one, tried = load_study(task, options), make_regions(asked)
    records = replay_rules(one, tried, asked)
    live, equal = check_live(one, tried, records)
    sought = {name: observe_region(one, region) for name, region in tried.items() if region.sought}
    print(
        f"{task}: replayed {len(records) - 1} rules on {len(one.cases)} decodings, {equal} of {live} live", flush=True
    )
    return Found(summarize(records), sought, time_steps(one, tried), live, equal)


def _label(task: str) -> str:
    return task.replace("-free", ", no suffix")


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of the three tables."""
    tasks = numbers["tasks"]
    return {
        "batch": LIVE,
        "live": sum(one["live"] for one in tasks.values()),
        "equal": sum(one["equal"] for one in tasks.values()),
        "announcement": ANNOUNCEMENT,
        "rows": [_result(task, name, one) for task, found in tasks.items() for name, one in found["results"].items()],
        "moments": [
            [_label(task), name, *map(percent, (one["first"], one["ever"], one["final"], *one["settled"]))]
            for task, found in tasks.items()
            for name, one in found["seen"].items()
        ],
        "costs": [row for task, found in tasks.items() for row in _cost(task, found)],
    }


def _result(task: str, name: str, one: Mapping[str, Any]) -> list[str]:
    row = read_row(one["row"])
    right = [percent(row.accuracy), spread((row.accuracy_low, row.accuracy_high)), number(row.steps)]
    if name == "full":
        return [_label(task), name, *right, *[""] * 6]
    low, high = one["speed"]
    speed = [times(row.step_speedup), f"{low:.2f} to {high:.2f}", percent(row.settled)]
    risk = [percent(one["risk"]), spread(one["interval"]), percent(row.lost / row.pairs)]
    return [_label(task), name, *right, *speed, *risk]


def _cost(task: str, found: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, milliseconds in found["step"].items():
        seen = found["seen"].get(name)
        search = ["", ""] if seen is None else [percent(seen["looked"]), f"{seen['microseconds']:.0f}"]
        rows.append([_label(task), name, f"{milliseconds:.2f}", *search])
    return rows


def draw(numbers: Numbers) -> Figure:
    return plot_stops({_label(task): _points(found["results"]) for task, found in numbers["tasks"].items()})


def _points(results: Mapping[str, Mapping[str, Any]]) -> list[Stopped]:
    named = [(name.split(", "), one) for name, one in results.items() if name != "full"]
    return [Stopped(what, how, one["row"]["step_speedup"], one["risk"], *one["interval"]) for (what, how), one in named]


def main() -> None:
    options = parse_options(make_parser(__doc__, bundled=TASKS, public=PUBLIC))
    found = {task: measure(task, options) for task in options.tasks}
    numbers: dict[str, Any] = {"limit": options.limit, "tasks": {task: asdict(one) for task, one in found.items()}}
    publish("found_regions", numbers, options)


if __name__ == "__main__":
    run_script(main)

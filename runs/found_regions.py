"""Answers found in the draft against answers at a fixed place: speed, agreement, risk, and what the looking costs.

    python runs/found_regions.py             # 1000 held-out problems a task; decodings are shared with other scripts
    python runs/found_regions.py --limit 50  # a look

Word problems and choices, each decoded once in full with its suffix pinned and once without; Prophet is replayed on
the traces with every region. The clock is read on a few problems decoded live, so run it on an idle machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import quantiles
from typing import Any

from foretell.lab.bundled import BUNDLED
from foretell.lab.replays import Study
from foretell.lab.report import Row, compare
from foretell.lab.statistics import wilson
from foretell.policies.region.delimiter import Delimiter
from foretell.policies.region.fixed import Fixed
from foretell.policies.region.pattern import Pattern
from foretell.policies.stop.prophet import Prophet
from foretell.protocols import Region
from foretell.spec import spell
from shared import SEED, options_of, percent, publish, spread, studied, table

TASKS = ("word", "word-free", "choice", "choice-free")
RULES = {"mean": Prophet(), "min": Prophet(reduce="min")}
LIVE = 8  # problems decoded live, in one batch
REPEATS = 3  # of a live decoding; the fastest counts


def regions(task: str) -> dict[str, Region]:
    """Every region that can be tried on a task; nothing is at a fixed place where no suffix is pinned."""
    suffix = BUNDLED[task].task.suffix
    sought: dict[str, Region] = {"delimiter": Delimiter(suffix), "pattern": Pattern(rf"{suffix} (\d+|[A-D])")}
    return sought if BUNDLED[task].free else {"fixed": Fixed()} | sought


@dataclass(frozen=True, slots=True)
class Found:
    """When a region was there, over the steps of all decodings."""

    n: int
    first: float  # share of decodings whose very first draft has it
    ever: float  # share that has it at some step
    final: float  # share whose final text has it
    steps: float  # share of all steps that have it
    settled: tuple[float, float, float]  # share of the budget from which on it never moves: 25%, 50%, 75% of decodings
    microseconds: float  # to look for it in one row


def found(one: Study, region: Region) -> Found:
    there, still, taken, rows = [], [], 0.0, 0
    for case in one.cases:
        state = replace(case.trace.states(region), draft=case.trace.tokens)
        started = time.process_time()
        places = region(state)
        taken, rows = taken + time.process_time() - started, rows + len(places)
        there.append(places.any(dim=1))
        moved = (places != places[-1]).any(dim=1).nonzero()
        still.append((int(moved.max()) + 1 if len(moved) else 0) / case.trace.request.budget)
    low, middle, high = quantiles(still, n=4) if len(still) > 1 else still * 3
    count = len(there)
    return Found(
        n=count,
        first=sum(bool(each[0]) for each in there) / count,
        ever=sum(bool(each.any()) for each in there) / count,
        final=sum(bool(each[-1]) for each in there) / count,
        steps=sum(int(each.sum()) for each in there) / rows,
        settled=(low, middle, high),
        microseconds=1e6 * taken / rows,
    )


def replayed(one: Study, tried: dict[str, Region]) -> tuple[Row, ...]:
    """Full decoding, and every rule with every region."""
    records, names = [case.record for case in one.cases], ["full"]
    for rule, stop in RULES.items():
        for place, region in tried.items():
            names.append(f"{place}, {rule}")
            records += one.under(names[-1], stop, region)
    return compare(records, names)


def clock(one: Study, tried: dict[str, Region]) -> dict[str, float]:
    """Milliseconds of a live step of a whole batch, with a rule that looks at every step and never fires."""
    engine, prompts = one.bench.engine, [case.example.prompt for case in one.cases[:LIVE]]
    options = dict(one.bench.benchmark.options)

    def decoded(recipe: str) -> Callable[[], int]:
        return lambda: max(done.steps for done in engine.generate(prompts, recipe=recipe, batch_size=LIVE, **options))

    watched = "prophet stop.tau=linear(inf,inf)"
    recipes = {"full": "full"} | {name: f"{watched} region={spell(region)}" for name, region in tried.items()}
    return {name: min(_milliseconds(decoded(recipe)) for _ in range(REPEATS)) for name, recipe in recipes.items()}


def _milliseconds(decode: Callable[[], int]) -> float:
    started = time.perf_counter()
    steps = decode()
    return 1000 * (time.perf_counter() - started) / steps


def measured(task: str, options: argparse.Namespace) -> dict[str, Any]:
    one, tried = studied(task, options), regions(task)
    return {
        "rows": replayed(one, tried),
        "found": {name: found(one, region) for name, region in tried.items() if region.sought},
        "clock": clock(one, tried),
    }


def _label(task: str) -> str:
    return task.replace("-free", ", no suffix pinned")


def _result(task: str, row: Row) -> list[str]:
    name = [_label(task), row.recipe, percent(row.accuracy), f"{row.steps:.1f}", f"{row.step_speedup:.2f}x"]
    if row.recipe == "full":
        return [*name, "", "", "", ""]
    differ = round((1 - row.agreement) * row.pairs)
    risk = [percent(differ / row.pairs), spread(*wilson(differ, row.pairs)), percent(row.lost / row.pairs)]
    return [*name, percent(row.settled), *risk]


def _when(task: str, name: str, one: Found) -> list[str]:
    shares = [percent(share) for share in (one.first, one.ever, one.final, one.steps)]
    return [_label(task), name, *shares, *(percent(share) for share in one.settled)]


def _cost(task: str, one: dict[str, Any]) -> list[list[str]]:
    looks = {name: f"{each.microseconds:.0f}" for name, each in one["found"].items()}
    return [[_label(task), name, f"{ms:.2f}", looks.get(name, "")] for name, ms in one["clock"].items()]


def markdown(made: dict[str, dict[str, Any]], limit: int) -> list[str]:
    results = ("task", "region, gap", "accuracy, %", "steps", "speedup", "settled, %", "differs, %", "95%", "lost, %")
    moments = ("task", "region", "first draft", "ever", "final text", "steps", "in place: 25%", "50%", "75%")
    return [
        "# Answers found on the fly",
        "",
        f"{limit} held-out problems a task (seed {SEED}), decoded in full with the bundled model, with the suffix",
        '"The answer is" pinned and without it; Prophet (7.5, 5.0, 2.5) is replayed with the region at its fixed place',
        "and found in the draft of each step. `python runs/found_regions.py`",
        "",
        "## Speed, agreement, risk",
        "Differs: answers that are not those of full decoding of the same window, the risk of stopping, with Wilson's",
        "interval. Lost: right in full, wrong at the exit.",
        *table(results, [_result(task, row) for task, one in made.items() for row in one["rows"]]),
        "## When it is found",
        "In % of the decodings, then of all steps; then the share of the budget from which on the region never moves",
        "again, for the fastest quarter of the decodings, the median and the slowest quarter.",
        *table(moments, [_when(task, name, each) for task, one in made.items() for name, each in one["found"].items()]),
        "## What the looking costs",
        f"A step of {LIVE} rows decoded live, in milliseconds (the fastest of {REPEATS}), with a rule that looks at",
        "every step and never fires; and the processor's time for looking through one row, in microseconds.",
        *table(
            ("task", "region", "step, ms", "a row, us"), [row for task, one in made.items() for row in _cost(task, one)]
        ),
    ]


def main() -> None:
    options = options_of(__doc__)
    made = {task: measured(task, options) for task in TASKS}
    numbers: dict[str, Any] = {"seed": SEED, "limit": options.limit}
    for task, one in made.items():
        kept = {name: asdict(each) for name, each in one["found"].items()}
        numbers[task] = {"rows": [asdict(row) for row in one["rows"]], "found": kept, "clock": one["clock"]}
    publish("found_regions", markdown(made, options.limit), numbers, options)


if __name__ == "__main__":
    main()

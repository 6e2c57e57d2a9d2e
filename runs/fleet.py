"""Capacity: a simulation of the scheduler, checked against the real one, and what it says about GPUs for LLaDA-8B.

    python runs/fleet.py                          # all parts, about five minutes on two idle cores
    python runs/fleet.py --parts check            # measured, in processor time
    python runs/fleet.py --parts plan             # simulated, from the stored exits and the roofline

`check` times the real scheduler on the bundled model, fits a cost model to the steps of other problems, and compares.
`plan` needs the questions of GSM8K (--data or FORETELL_DATA) for the lengths of prompts. Parts keep their last numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

import foretell
from fleet_page import draw, view
from foretell.engine.engine import Engine
from foretell.engine.outcome import FailedRequest, Outcome
from foretell.engine.request import Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.evaluation.benchmarks.bundled import BUNDLED
from foretell.evaluation.catalogue import benchmark_named
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.extras import require_extra
from foretell.loop.decode import decode
from foretell.models.dream import DREAM
from foretell.plan.costs import FittedCost, RooflineCost, fit
from foretell.plan.devices import DEVICES
from foretell.plan.passes import Pass, PassRecorder, dry_run
from foretell.plan.roofline import Roofline
from foretell.plan.shapes import find_shape
from foretell.plan.simulate import (
    BatchStep,
    Cost,
    Finished,
    Job,
    RouteByKind,
    Router,
    Server,
    Work,
    bursts,
    daily,
    job_of,
    poisson,
    route_by_load,
    route_randomly,
    simulate,
)
from foretell.recipes.presets import parse
from foretell.reproduce.paper import FAST_DLLM, PROPHET
from page import publish
from results_page import RESULTS
from shared import BUNDLED_MODEL, SEED, run_script

TASK = "word"
CHECKED = {"full": "full", "prophet": "prophet stop.reduce=min", "swift": "swift"}  # on the bundled model
QUICK = "swift"  # the recipe of the check with arrivals
# The queues whose steps the cost model is fitted to: recipe, number of requests, batch size.
FITTED = (("full", 8, 8), ("full", 16, 16), ("prophet", 16, 16), ("swift", 32, 4), ("swift", 32, 8), ("swift", 32, 16))
BATCH = 16  # of the check
LOAD = 0.7  # of the check with arrivals
AHEAD = 256  # `lookahead` and `patience` of `Engine.scheduler`

MODEL, WINDOW, BLOCK, ANSWER = "llada-8b", 256, 32, 5  # GSM8K in the paper
TEMPLATE = 11  # tokens of LLaDA's chat template around a question
TOKENS_PER_STEP = 3.25  # Fast-dLLM on GSM8K with a threshold of 0.9
REPORTED = 8 * 3 * 3600 / 1319 / 512  # seconds per pass on an A100: ML-GSAI/LLaDA, issue 112
EFFICIENCY = 0.4  # share of the roofline; the page says why
GPUS = ("l40s", "a100", "h100", "h200", "b200")
GPU, ROWS = "h100", 8
RECIPES = ("full", "prophet", "fast-dllm-prophet")
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ROW_COUNTS = (1, 2, 4, 8, 16, 32)
KINDS = (1, 2, 4, 8, 16)
REPLICAS = (1, 4, 16, 64, 256, 1000)
SLOW = 4.0  # the p95 latency that is accepted, in latencies of a request that is alone
DAY = 2000  # length of the simulated day, in mean times between requests of one replica

__all__ = ["draw", "view"]  # of the page


# ---- measured: the real scheduler on the bundled model ----


def queue(engine: Engine, recipe: str, count: int, seed: int) -> list[Request]:
    benchmark = BUNDLED[TASK]
    way = TaskRecipe.of(recipe, benchmark)
    examples = benchmark.examples(None, count, seed)
    return [engine.request(one.prompt, way.template(engine, one, SEED)) for one in examples]


@dataclass(slots=True)
class Timed:
    """A scheduler with requests that arrive at given times, and a clock that runs only while it takes a step.

    The clock is processor time (the process has one thread). Several of these take turns of one step, so that whatever
    else runs on the machine slows all of them alike.
    """

    scheduler: Scheduler
    requests: Sequence[Request]
    arrivals: Sequence[float] = ()  # default: all at the start
    now: float = 0.0
    submitted: int = 0
    finished: dict[int, float] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # of each request
    taken: list[tuple[BatchStep, float]] = field(default_factory=list)  # if the scheduler's model records its passes

    @property
    def over(self) -> bool:
        return len(self.finished) == len(self.requests)

    def step(self) -> None:
        arrivals = self.arrivals or [0.0] * len(self.requests)
        if not self.scheduler.busy and self.submitted < len(self.requests):
            self.now = max(self.now, arrivals[self.submitted])
        while self.submitted < len(self.requests) and arrivals[self.submitted] <= self.now:
            self.scheduler.submit(self.requests[self.submitted])
            self.submitted += 1
        running, started = len(self.scheduler.running), time.process_time()
        found = self.scheduler.step()
        seconds = time.process_time() - started
        self.now += seconds
        for one in found:
            done = completed(one)
            self.finished[done.ticket], self.steps[done.ticket] = self.now, done.steps
        if isinstance(self.scheduler.model, PassRecorder):
            joined = len(self.scheduler.running) + len(found) - running
            self.taken.append((BatchStep(self.scheduler.model.take(), joined, len(found)), seconds))

    def in_order(self, values: Mapping[int, Any]) -> list[Any]:
        return [values[ticket] for ticket in range(len(self.requests))]


def take_turns(queues: Sequence[Timed]) -> None:
    while waiting := [one for one in queues if not one.over]:
        for one in waiting:
            one.step()


def completed(one: Outcome | FailedRequest) -> Outcome:
    if isinstance(one, FailedRequest):
        raise one.error
    return one


def recorded(engine: Engine, batch: int) -> Scheduler:
    """Return a scheduler that records the passes of its steps."""
    return replace(engine.scheduler(batch_size=batch), model=PassRecorder(engine.model))


def job_alone(engine: Engine, request: Request) -> Job:
    """Return the job of a request, which is decoded alone."""
    recorder = PassRecorder(engine.model)
    state = lay_out([request], engine.model.mask_id, engine.codec.end_ids, engine.device, engine.spelling)
    steps = [recorder.take() for _ in decode(recorder, state, request.recipe)]
    return job_of(steps, "all", len(request.prompt), request.layout.length)


def first_steps(complete: Job, request: Request, steps: int) -> Job:
    """Return the job of a request that takes the first steps of a complete decoding in full, which are always alike."""
    works = [work for count, work in complete.runs for _ in range(count)]
    return replace(complete, prompt=len(request.prompt), runs=tuple((1, work) for work in works[:steps]))


def check(options: argparse.Namespace) -> dict[str, Any]:
    """Measure queues, fit a cost model to other queues, simulate the measured ones, and compare."""
    loaded = foretell.load(BUNDLED_MODEL)
    engine = Engine(loaded.model, loaded.codec)
    engine.use_threads()
    count = options.requests
    queues = {name: queue(engine, text, count, SEED) for name, text in CHECKED.items()}
    quick = [job_alone(engine, one) for one in queues[QUICK]]  # also warms up
    complete = job_alone(engine, queues["full"][0])

    others = [(queue(engine, CHECKED[name], size, SEED + 1), size, batch) for name, size, batch in FITTED]
    fitting = [Timed(recorded(engine, batch), requests) for requests, _, batch in others]
    timed = {name: Timed(engine.scheduler(batch_size=BATCH), requests) for name, requests in queues.items()}
    take_turns([*timed.values(), *fitting])
    rate = LOAD * count / timed[QUICK].now
    arrivals = poisson(rate, count, np.random.default_rng(SEED)).tolist()
    online = Timed(engine.scheduler(batch_size=BATCH), queues[QUICK], arrivals)
    again = Timed(recorded(engine, BATCH), queue(engine, CHECKED[QUICK], count, SEED + 2), arrivals)
    take_turns([online, again])
    fitted = [one for each in (*fitting, again) for one in each.taken]
    measured = {name: (one.in_order(one.finished), one.in_order(one.steps)) for name, one in timed.items()}

    cost = fit([one for one, _ in fitted], [seconds for _, seconds in fitted])
    found: dict[str, Any] = {"requests": count, "batch": BATCH, "load": LOAD, "steps_fitted": len(fitted), "ways": {}}
    found["coefficients"] = list(cost.coefficients)
    found["exits"] = {name: steps for name, (_, steps) in measured.items()}
    found["prompts"] = [len(one.prompt) for one in queues["full"]]
    for name, (seconds, steps) in measured.items():
        whole = [first_steps(complete, one, taken) for one, taken in zip(queues[name], steps, strict=True)]
        jobs = quick if name == QUICK else whole
        found["ways"][name] = compare(seconds, [0.0] * count, jobs, cost)
    found["ways"][f"{QUICK}, Poisson arrivals"] = compare(online.in_order(online.finished), arrivals, quick, cost)
    found["quick"] = [list(map(list, one.runs)) for one in quick]
    return found


def compare(
    finished: Sequence[float], arrivals: Sequence[float], jobs: Sequence[Job], cost: FittedCost
) -> dict[str, Any]:
    done = simulate([Server(cost, BATCH, AHEAD, AHEAD)], jobs, arrivals)
    latencies = [end - start for end, start in zip(finished, arrivals, strict=True)]
    found = {"measured": summary(latencies, max(finished)), "simulated": summary_of(done)}
    found["ratios"] = {key: found["simulated"][key] / found["measured"][key] for key in ("rate", "p95")}
    return found | {"latencies": sorted(latencies), "simulated_latencies": sorted(one.latency for one in done)}


# ---- simulated: LLaDA-8B on GPUs ----


def prompt_lengths(options: argparse.Namespace) -> list[int]:
    """Return about how many tokens GSM8K's questions have in the chat template."""
    examples = benchmark_named("gsm8k").examples(options.data, 400, SEED)
    splitter = Split(Regex(str(DREAM.words)), "isolated")
    texts = [one.prompt if isinstance(one.prompt, str) else json.dumps(one.prompt) for one in examples]
    return [TEMPLATE + len(splitter.pre_tokenize_str(text)) for text in texts]


def spread(measured: Sequence[float], mean: float) -> list[float]:
    """Return shares of a budget with this mean and the spread of the measured ones: the same power of each of them."""
    shares = np.array(measured)
    low, high = 1e-3, 1e3
    for _ in range(100):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if float((shares**middle).mean()) > mean else (low, middle)
    return [float(one) for one in shares**low]


@lru_cache
def works_of(name: str) -> tuple[tuple[Work, ...], int]:
    """Return the work of every step of a recipe, and the window positions of the pass for an early commit."""
    recipe = parse(f"{name} block_length={BLOCK}")
    tokens = TOKENS_PER_STEP if recipe.transfer.parallel else 1.0

    def job(steps: int | None) -> Job:
        return job_of(dry_run(recipe, 8, WINDOW, ANSWER, tokens, steps), "all", 8, WINDOW)

    works = tuple(work for count, work in job(None).runs for _ in range(count))
    return works, 0 if name == "full" else job(BLOCK // 4).runs[-1][1].commit


class Workload:
    """Jobs of LLaDA-8B on GSM8K under the published exits, or with the exits that the bundled model had."""

    def __init__(self, prompts: Sequence[int], measured: Sequence[float], *, published: bool) -> None:
        self.prompts, self.works = prompts, {name: works_of(name) for name in RECIPES}
        mean = PROPHET[WINDOW].steps / WINDOW  # type: ignore[operator]
        shares = spread(measured, mean) if published else list(measured)
        together = FAST_DLLM["Fast-dLLM"].speedup / FAST_DLLM["Fast-dLLM + Prophet"].speedup  # type: ignore[operator]
        later = spread(measured, together) if published else shares
        self.shares = {"full": [1.0], "prophet": shares, "fast-dllm-prophet": later}
        self.runs = {name: [self._runs(name, share) for share in self.shares[name]] for name in RECIPES}

    def _runs(self, name: str, share: float) -> tuple[tuple[int, Work], ...]:
        """Return the work of a request that takes this share of the steps."""
        works, commit = self.works[name]
        steps = max(1, round(share * len(works)))
        taken = list(works[:steps])
        if steps < len(works):
            taken[-1] = taken[-1]._replace(commit=commit)
        runs = []
        # Logits are a small part of a pass, so steps that differ only in them are one run with their mean.
        for _, same in groupby(taken, key=lambda work: work[:3]):
            alike = list(same)
            read = round(sum(work.read for work in alike) / len(alike))
            runs.append((len(alike), alike[0]._replace(read=read)))
        return tuple(runs)

    def job(self, name: str, rng: np.random.Generator, kind: str = "all") -> Job:
        runs = self.runs[name][int(rng.integers(len(self.runs[name])))]
        return Job(kind, self.prompts[int(rng.integers(len(self.prompts)))], WINDOW, runs, name == "fast-dllm-prophet")

    def jobs(self, name: str, count: int, seed: int = SEED, kinds: int = 1) -> list[Job]:
        rng = np.random.default_rng(seed)
        return [self.job(name, rng, f"kind {rng.integers(kinds)}" if kinds > 1 else "all") for _ in range(count)]

    def mean_steps(self, name: str) -> float:
        return float(np.mean([max(1, round(one * len(self.works[name][0]))) for one in self.shares[name]]))


@lru_cache
def cost_on(gpu: str, efficiency: float = EFFICIENCY) -> RooflineCost:
    return RooflineCost(Roofline(find_shape(MODEL), DEVICES[gpu], torch.bfloat16), efficiency)


def bound_of_report(prompt: int) -> float:
    """Return the roofline of one of the passes that LLaDA's authors report, with this prompt."""
    columns = prompt + 512
    one = Pass(rows=1, columns=columns, attended=columns, stored=False, whole=True, read=BLOCK)
    return cost_on("a100", 1.0)(BatchStep((one,), 0, 0))


def capacity(jobs: Sequence[Job], cost: Cost, rows: int, replicas: int = 1, route: Router = route_by_load) -> float:
    """Return requests per second of each replica when requests always wait. The first rows do not start together."""
    servers = [Server(cost, rows) for _ in range(replicas)]
    (single,) = simulate([Server(cost, rows)], jobs[:1], [0.0])
    slots = rows * replicas
    arrivals = [min(i, slots) / slots * single.latency for i in range(len(jobs))]
    simulate(servers, jobs, arrivals, route, SEED)
    return len(jobs) / sum(one.busy_seconds for one in servers)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{level}": float(np.percentile(values, level)) for level in (50, 95, 99)}


def summary(latencies: Sequence[float], end: float) -> dict[str, float]:
    return quantiles(latencies) | {"rate": len(latencies) / end}


def summary_of(done: Sequence[Finished]) -> dict[str, float]:
    return summary([one.latency for one in done], done[-1].finished)


def settled(done: Sequence[Finished]) -> list[float]:
    """Return latencies without those of the first tenth, which found empty replicas."""
    ordered = sorted(done, key=lambda one: one.arrival)
    return [one.latency for one in ordered[len(ordered) // 10 :]]


def plan(options: argparse.Namespace) -> dict[str, Any]:
    before = json.loads((options.out / "fleet.json").read_text(encoding="utf8"))["check"]
    prompts = prompt_lengths(options)
    measured = [one / max(before["exits"]["full"]) for one in before["exits"]["prophet"]]
    workloads = {
        "published": Workload(prompts, measured, published=True),
        "bundled": Workload(prompts, measured, published=False),
    }
    load = workloads["published"]
    found: dict[str, Any] = {
        "model": MODEL,
        "window": WINDOW,
        "efficiency": EFFICIENCY,
        "gpu": GPU,
        "rows": ROWS,
        "prompt_mean": float(np.mean(prompts)),
        "low_share": bound_of_report(128) / REPORTED,
        "high_share": bound_of_report(700) / REPORTED,
        "steps": {name: {one: each.mean_steps(one) for one in RECIPES} for name, each in workloads.items()},
    }
    count = options.jobs
    found["capacity"] = {
        name: {gpu: {one: capacity(each.jobs(one, count), cost_on(gpu), ROWS) for one in RECIPES} for gpu in GPUS}
        for name, each in workloads.items()
    }
    say("capacity")
    found["alone"] = {one: alone(load.jobs(one, 50)) for one in RECIPES}
    found["loads"] = {one: at_loads(load, one, found, poisson_at, 3 * count) for one in RECIPES}
    say("loads")
    found["arrivals"] = {
        name: at_loads(load, "prophet", found, process, 3 * count, (0.5, 0.8))
        for name, process in {
            "Poisson": poisson_at,
            "bursts of 16": bursts_at,
            "daily curve, peak 1.25": daily_at,
        }.items()
    }
    found["row_counts"] = {one: with_rows(load, one, count) for one in RECIPES}
    say("rows")
    found["fragments"] = {one: fragments(load, one, count // 3) for one in ("prophet", "fast-dllm-prophet")}
    say("fragments")
    found["replicas"] = scaling(load, found, options.jobs)
    return found


def say(words: str) -> None:
    print(f"  {words}", flush=True)


def poisson_at(rate: float, count: int, rng: np.random.Generator) -> Any:
    return poisson(rate, count, rng)


def bursts_at(rate: float, count: int, rng: np.random.Generator) -> Any:
    return bursts(rate, count, 16, rng)


def daily_at(rate: float, count: int, rng: np.random.Generator) -> Any:
    return daily(rate, count, 1.25, DAY / rate, rng)


def alone(jobs: Sequence[Job]) -> float:
    """Return the mean latency of requests that have a replica for themselves."""
    gaps = [1e6 * i for i in range(len(jobs))]
    return float(np.mean([one.latency for one in simulate([Server(cost_on(GPU), ROWS)], jobs, gaps)]))


def at_loads(
    load: Workload,
    name: str,
    found: dict[str, Any],
    process: Callable[..., Any],
    count: int,
    loads: Sequence[float] = LOADS,
) -> list[dict[str, float]]:
    most = found["capacity"]["published"][GPU][name]
    rows = []
    for share in loads:
        arrivals = process(share * most, count, np.random.default_rng(SEED)).tolist()
        done = simulate([Server(cost_on(GPU), ROWS)], load.jobs(name, count), arrivals)
        rows.append({"load": share} | quantiles(settled(done)))
    return rows


def with_rows(load: Workload, name: str, count: int) -> list[dict[str, float]]:
    found = []
    for rows in ROW_COUNTS:
        jobs = load.jobs(name, count)
        most = capacity(jobs, cost_on(GPU), rows)
        arrivals = poisson(0.7 * most, count, np.random.default_rng(SEED)).tolist()
        done = simulate([Server(cost_on(GPU), rows)], jobs, arrivals)
        found.append({"rows": rows, "rate": most} | quantiles(settled(done)))
    return found


def fragments(load: Workload, name: str, count: int) -> dict[str, list[float]]:
    """Return capacities relative to one kind: one replica, and 16 replicas routed by load and by kind."""
    base = capacity(load.jobs(name, count), cost_on(GPU), ROWS)
    ways: dict[str, list[float]] = {"one replica": [], "16 replicas, by load": [], "16 replicas, by kind": []}
    for kinds in KINDS:
        jobs = load.jobs(name, count, kinds=kinds)
        many = load.jobs(name, 2 * count, kinds=kinds)
        names = tuple(f"kind {i}" for i in range(kinds)) if kinds > 1 else ("all",)
        by_kind = RouteByKind(tuple((one, 1 / kinds) for one in names))
        ways["one replica"].append(capacity(jobs, cost_on(GPU), ROWS) / base)
        for way, route in (("by load", route_by_load), ("by kind", by_kind)):
            rate = busy_rate(many, 16, route, base)
            ways[f"16 replicas, {way}"].append(rate / base)
    return ways


def busy_rate(jobs: Sequence[Job], replicas: int, route: Router, base: float) -> float:
    """Return requests per busy second of a replica at nine tenths of the capacity of one kind."""
    servers = [Server(cost_on(GPU), ROWS) for _ in range(replicas)]
    arrivals = poisson(0.9 * base * replicas, len(jobs), np.random.default_rng(SEED)).tolist()
    simulate(servers, jobs, arrivals, route, SEED)
    return len(jobs) / sum(one.busy_seconds for one in servers)


def scaling(load: Workload, found: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the highest load per replica at which p95 stays within `SLOW`, by the number of replicas."""
    most, single = found["capacity"]["published"][GPU]["prophet"], found["alone"]["prophet"]
    made: dict[str, Any] = {"slow": SLOW, "alone": single}
    for way, route in (("at random", route_randomly), ("by load", route_by_load)):
        made[way] = []
        for replicas in REPLICAS:
            jobs = load.jobs("prophet", max(count, 4 * replicas))
            low, high = 0.0, 1.0
            for _ in range(4):
                middle = (low + high) / 2
                slowest = p95_of(jobs, replicas, middle * most * replicas, route)
                low, high = (middle, high) if slowest <= SLOW * single else (low, middle)
            made[way].append({"replicas": replicas, "load": low, "rate": low * most * replicas})
        say(f"replicas, {way}")
    return made


def p95_of(jobs: Sequence[Job], replicas: int, rate: float, route: Router) -> float:
    arrivals = poisson(rate, len(jobs), np.random.default_rng(SEED)).tolist()
    servers = [Server(cost_on(GPU), ROWS) for _ in range(replicas)]
    return quantiles(settled(simulate(servers, jobs, arrivals, route, SEED)))["p95"]


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"check": check, "plan": plan}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--requests", type=int, default=64, help="number of requests of the check (default: 64)")
    parser.add_argument("--jobs", type=int, default=600, help="number of simulated requests per point (default: 600)")
    parser.add_argument("--data", type=Path, help="folder of the public benchmarks (default: FORETELL_DATA)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    require_extra("lab")
    options.model, options.own = BUNDLED_MODEL, True
    options.out.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    path = options.out / "fleet.json"
    for name in options.parts:
        print(f"({name})", flush=True)
        numbers = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
        numbers |= {name: PARTS[name](options)}
        path.write_text(json.dumps(numbers), encoding="utf8")
    numbers = {name: numbers[name] for name in PARTS if name in numbers}
    if len(numbers) == len(PARTS):
        publish("fleet", numbers, options)


if __name__ == "__main__":
    run_script(main)

"""Tune on tasks whose true risk is known: certified speedups, and whether the promised risk is kept.

    python runs/tune.py --page                           # four bundled tasks; about five hours of processor time
    python runs/tune.py --page --antibody-models sapiens-vh sapiens-vl antiberty --models DIR --data DIR
    python runs/tune.py --missing                        # measure only what the published page lacks
    python runs/tune.py --page --stored                  # the page of what is measured: published rows, and newer ones

Per task, a pool of independent problems is split into pilot, calibration set and held-out problems, three times. The
code of `foretell tune` runs on the first two parts, and the recipe that it certifies is decoded on the third. The same
is done with stopping rules alone and with the transfer alone. Rungs with a stopping rule are replayed on the traces of
the same rung without it, which gives the same tokens as decoding them (checked here on some of them), so splits share
decodings. Then many calibration sets are drawn from the pool, whose risk under every rung is known. Safe to interrupt:
run the same command again to resume.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antibody_models import CHAINS, find_model
from foretell.certify.betting import Array
from foretell.certify.decode_store import DecodeStore
from foretell.certify.ladders import Ladder
from foretell.certify.outcomes import find_exits, replay_losses
from foretell.certify.pilot import cost_of
from foretell.certify.replay import Case
from foretell.certify.risk import FIRST_LOOK, p_values
from foretell.certify.search import RiskGoal, RungResult, certify_ladder, find_fastest, risk_interval
from foretell.certify.tune import Tuning
from foretell.cli.console import say
from foretell.evaluation.benchmark import Example
from foretell.evaluation.intervals import bootstrap
from foretell.evaluation.records import Record
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch
from foretell.policies.stop.families import drop_twins, find_families, share_delta
from foretell.recipes.presets import parse
from foretell.recipes.text import format_value
from foretell.storage import load_json, write_file
from page import publish
from real_models import read_problems
from shared import ROOT, TASKS, run_script
from tune_page import ANTIBODY_GOALS, GOALS, draw, find_goal_risk, view

POOL, PILOT, CALIBRATION = 6400, 400, 3000
SEED = 2027  # of the pool
SPLITS = 3
RISKS = (0.005, 0.01, 0.02, 0.05)
CONFIDENCE = 0.95
DRAWS = 1000
ANTIBODY_SPLITS, ANTIBODY_PILOT, ANTIBODY_CALIBRATION = 10, 100, 300
LIVE = 200  # held-out problems that are decoded live to compare with their replay, and timed
DELTA = FIRST_LOOK * (1 - CONFIDENCE)

__all__ = ["draw", "view"]  # of the page


def show_stage(title: str, total: int) -> Watch:
    say(f"{time.strftime('%H:%M:%S')} {title}: {total}", style="dim")
    return lambda _: None


@dataclass(frozen=True, slots=True)
class ReplayStore(DecodeStore):
    """A store that keeps cases in memory, and replays stopping rules instead of decoding them."""

    known: dict[str, dict[str, Case]] = field(default_factory=dict)

    def cases(self, recipe: str, examples: Sequence[Example], title: str = "") -> tuple[Case, ...]:
        kept = self.known.setdefault(recipe, {})
        missing = [one for one in examples if one.id not in kept]
        if missing:
            kept |= {case.example.id: case for case in DecodeStore.cases(self, recipe, missing, title)}
        return tuple(kept[one.id] for one in examples)

    def records(self, recipe: str, examples: Sequence[Example], title: str = "") -> list[Record]:
        base, stopped, _ = recipe.partition(" stop=")
        if "verify=" in recipe:
            return DecodeStore.records(self, recipe, examples, title)
        cases = self.cases(base, examples, title)
        if not stopped:
            return [case.record for case in cases]
        rule = parse(self.resolve(recipe)).stop
        exits = find_exits([case.trace for case in cases], [rule])
        return [replay(case, step) for case, (step,) in zip(cases, exits, strict=True)]


def replay(case: Case, step: int | None) -> Record:
    """Return the record of a case that commits at `step`."""
    if step is None:
        return case.record
    found, whole = case.decoded_at(step), case.record
    share = (step + 1) / whole.steps
    return replace(
        whole, text=found.text, answer=found.answer, correct=found.correct, tokens=found.tokens, steps=step + 1,
        forwards=round(whole.forwards * share), columns_needed=round(whole.columns_needed * share), exit=step,
    )  # fmt: skip


def split(examples: Sequence[Example], number: int, sizes: tuple[int, int]) -> tuple[list[Example], ...]:
    """Return pilot, calibration set and held-out examples of one split."""
    mixed = random.Random(f"{SEED} {number}").sample(list(examples), len(examples))
    first, second = sizes
    return mixed[:first], mixed[first : first + second], mixed[first + second :]


def measure(store: DecodeStore, goal: RiskGoal, recipe: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Return the risk and the speedup of a recipe on examples that nothing was chosen on."""
    losses, costs, full = (np.array(one) for one in _columns(store, goal, recipe, examples))
    return {
        "recipe": recipe,
        "n": len(examples),
        "risk": float(losses.mean()),
        "interval": list(risk_interval(losses, goal)),
        "speedup": float(full.sum() / costs.sum()),
    }


def _columns(store: DecodeStore, goal: RiskGoal, recipe: str, examples: Sequence[Example]) -> tuple[list[float], ...]:
    tuning = Tuning(store, goal, (), tuple(examples))
    full = store.records("full", examples)
    result = tuning.measure(recipe, full, len(examples))
    return list(result.losses), list(result.costs), list(result.full_costs)


def certify_stops(store: ReplayStore, goal: RiskGoal, calibration: Sequence[Example]) -> str:
    """Return the fastest recipe that differs from full decoding only in a certified stopping rule."""
    cases = store.cases("full", calibration)
    full = [case.record for case in cases]
    first = cases[0].trace.request.layout
    families = find_families("all")
    families = drop_twins(families) if first.answer and first.answer[1] == 1 else families
    costs = np.array([cost_of(one, goal.cost) for one in full])
    searches = []
    for family, share in zip(families, share_delta(families), strict=True):
        steps, (losses,) = replay_losses(cases, family.rules, full, [goal.measure])
        rungs = tuple(f"full stop={format_value(rule)}" for rule in family.rules)
        per_step = costs / np.array([one.steps for one in full])
        results = (
            RungResult(mine, took * per_step, costs, len(full)) for mine, took in zip(losses, steps, strict=True)
        )
        searches.append(certify_ladder(Ladder(family.name, rungs), results, goal, DELTA * share))
    best = find_fastest(searches).fastest
    return "full" if best is None else best.rung


def certify_rungs(store: DecodeStore, goal: RiskGoal, ladder: Ladder, calibration: Sequence[Example]) -> str:
    """Return the fastest certified rung of a ladder."""
    tuning = Tuning(store, goal, (), tuple(calibration))
    full = store.records("full", calibration)
    best = certify_ladder(ladder, tuning.decode_rungs(ladder, full, []), goal, DELTA).fastest
    return "full" if best is None else best.rung


def tune_task(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run every split and risk of a bundled task; results are stored one by one."""
    out = options.work / "tiny" / task
    what = Evaluation(
        "tiny", task, ("full",), out, limit=options.pool, seed=SEED, batch_size=16, independent=True, packed=True
    )  # fmt: skip
    store = ReplayStore(PreparedEvaluation.prepare(what), show_stage)
    sizes = (options.pilot, options.calibration)
    found: dict[str, Any] = {"rows": [], "draws": [], "live": None}
    first = find_goal_risk(options.risks)  # is measured first
    published = read_published(options)["tasks"].get(task, {"rows": []}) if options.missing else {"rows": []}
    known = {(one["split"], one["eps"]) for one in published["rows"]}
    for number, risk in sorted(
        product(range(options.splits), options.risks),
        key=lambda one: (one[0] > 0 and one[1] != first, one[0], one[1] != first, -one[1]),  # fast rungs first
    ):
        file = out / "results" / f"{options.pool}-{number}-{risk:g}.json"
        if not file.exists() and (options.stored or (number, risk) in known):
            continue
        if not file.exists():
            say(f"{time.strftime('%H:%M:%S')} {task}, split {number}, risk {risk:.1%}", style="bold")
            goal = RiskGoal(risk, CONFIDENCE, "answer", against="full", cost="forwards")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, json.dumps(run_split(store, goal, *split(store.bench.examples, number, sizes))))
        row = {"task": task, "split": number, "eps": risk, **load_json(file, "result")}
        found["rows"].append(row)
    for row in (one for one in found["rows"] if one["split"] == 0):
        if row["eps"] == first:
            found["live"] = check_live(store, row, sizes, out, stored=options.stored)
        found["draws"] += draw_sets(store, row, sizes, out, stored=options.stored)
    for part in ("rows", "draws"):
        found[part].sort(key=lambda one: (one.get("split", 0), one["eps"]))
    return found


def run_split(
    store: ReplayStore, goal: RiskGoal, pilot: list[Example], calibration: list[Example], held: list[Example]
) -> dict[str, Any]:
    tuning = Tuning(store, goal, tuple(pilot), tuple(calibration))
    found = tuning.search()
    ladder = found.chosen
    chosen = {
        "stopping rules alone": certify_stops(store, goal, calibration),
        "transfer alone": certify_rungs(store, goal, found.transfer_alone, calibration),
        "tune": certify_rungs(store, goal, ladder, calibration),
    }
    return {
        "ladder": ladder.name,
        "rungs": list(ladder.rungs),
        "ways": {name: measure(store, goal, recipe, held) for name, recipe in chosen.items()},
    }


def draw_sets(
    store: ReplayStore, row: dict[str, Any], sizes: tuple[int, int], out: Path, *, stored: bool
) -> list[dict[str, Any]]:
    """Draw calibration sets from the pool without the pilot of the first split, and certify its ladder on each."""
    task, eps = row["task"], row["eps"]
    pilot = {one.id for one in split(store.bench.examples, 0, sizes)[0]}
    examples = [one for one in store.bench.examples if one.id not in pilot]
    goal = RiskGoal(eps, CONFIDENCE, "answer", against="full", cost="forwards")
    file = out / "results" / f"draws-{len(examples)}-{eps:g}.npz"
    if stored and not file.exists():
        return []
    sets = np.random.default_rng([SEED, round(10_000 * eps)]).integers(0, len(examples), (DRAWS, sizes[1]))
    if not file.exists():
        columns: list[tuple[list[float], ...]] = []
        alive = np.ones(DRAWS, dtype=bool)  # sets that have certified every rung so far
        for rung in row["rungs"]:
            columns.append(_columns(store, goal, rung, examples))
            alive &= _passes(columns[-1][0], sets, goal)
            if not alive.any():  # later rungs decide nothing
                break
        np.savez_compressed(file, losses=[one[0] for one in columns], costs=[one[1] for one in columns],
                            full=columns[0][2])  # fmt: skip
    with np.load(file) as kept:
        losses, costs, full = kept["losses"], kept["costs"], kept["full"]
    speedups = np.r_[1.0, full.sum() / costs.sum(axis=1)]
    risks = np.r_[0.0, losses.mean(axis=1)]
    last = np.cumprod([_passes(one, sets, goal) for one in losses], axis=0).sum(axis=0)
    reached = speedups[last]
    return [
        {
            "task": task, "eps": eps, "pool": len(examples), "size": sizes[1],
            "mean": float(reached.mean()), "above": float((risks[last] > goal.risk).mean()),
            "goal": float((reached >= GOALS[task]).mean()),
            "nothing": float((last == 0).mean()),
            "rungs": [[float(speed), float(risk)] for speed, risk in zip(speedups[1:], risks[1:], strict=True)],
        }
    ]  # fmt: skip


def _passes(losses: Sequence[float], sets: Array, goal: RiskGoal) -> Array:
    """Return whether each set [sets, n], given as indices, shows that a rung with these losses keeps the risk."""
    found: Array = p_values(np.array(losses)[sets], goal.risk, graded=goal.measure.graded) <= DELTA
    return found


def check_live(
    store: ReplayStore, row: dict[str, Any], sizes: tuple[int, int], out: Path, *, stored: bool
) -> dict[str, Any] | None:
    """Decode some held-out problems live, in full and in every certified way, in turns; time and compare them."""
    file = out / "results" / "clock.json"
    if stored and not file.exists():
        return None
    if not file.exists():
        held, engine = split(store.bench.examples, 0, sizes)[2][:LIVE], store.bench.engine
        recipes = {"full": "full"} | {way: one["recipe"] for way, one in row["ways"].items()}
        seconds, live = dict.fromkeys(recipes, 0.0), {way: list[tuple[str, int]]() for way in recipes}
        for start in range(0, len(held), 40):
            for way, recipe in recipes.items():
                prepared = store.prepare(recipe).recipes[0]
                pairs = [(one.prompt, prepared.template(engine, one, SEED)) for one in held[start : start + 40]]
                began = time.process_time()
                done = dict(engine.generate_iter(pairs, batch_size=32))
                seconds[way] += time.process_time() - began
                live[way] += [(done[place].text, done[place].steps) for place in range(len(pairs))]
        replayed = {way: [(one.text, one.steps) for one in store.records(recipes[way], held)] for way in recipes}
        same = sum(one == other for way in recipes for one, other in zip(live[way], replayed[way], strict=True))
        clock = {way: seconds["full"] / seconds[way] for way in row["ways"]}
        write_file(
            file, json.dumps({"n": len(held), "same": same, "compared": len(recipes) * len(held), "clock": clock})
        )
    found: dict[str, Any] = {"task": row["task"], **load_json(file, "live decodings")}
    return found


def tune_antibodies(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run splits of the masked antibodies of one model."""
    out = options.work / name
    out.mkdir(parents=True, exist_ok=True)
    problems = read_problems(CHAINS[name], 0.5, options.antibodies.get(name), options.data)
    lines = [
        json.dumps({"id": str(place), "text": one.text, "answer": one.residues}) for place, one in enumerate(problems)
    ]
    write_file(out / "texts.jsonl", "\n".join(lines) + "\n")
    folder = find_model(name, options.models, options.work)
    what = Evaluation(str(folder), "fill", ("full",), out, source=out / "texts.jsonl", seed=SEED, batch_size=16)
    store = ReplayStore(PreparedEvaluation.prepare(what), show_stage)
    sizes = options.antibody_sizes.get(name, (ANTIBODY_PILOT, ANTIBODY_CALIBRATION))
    rows = []
    for number in range(options.antibody_splits):
        pilot, calibration, held = split(store.bench.examples, number, sizes)
        for risk in ANTIBODY_GOALS:
            file = out / "results" / f"{number}-{risk:g}.json"
            if options.stored and not file.exists():
                continue
            if not file.exists():
                say(f"{time.strftime('%H:%M:%S')} {name}, split {number}, risk {risk:.1%}", style="bold")
                file.parent.mkdir(parents=True, exist_ok=True)
                goal = RiskGoal(risk, CONFIDENCE, "tokens", against="full", cost="forwards")
                tuning = Tuning(store, goal, tuple(pilot), tuple(calibration))
                found = tuning.search()
                recipe = certify_rungs(store, goal, found.chosen, calibration)
                before, after = (recovery(store.records(way, held), held) for way in ("full", recipe))
                row = {"ladder": found.chosen.name, **measure(store, goal, recipe, held)}
                write_file(file, json.dumps({**row, "recovery": after, "full_recovery": before}))
            rows.append(
                {"model": name, "split": number, "eps": risk, "sizes": list(sizes), **load_json(file, "result")}
            )
    return rows


def read_published(options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of the published page."""
    file = options.out / "tune.json"
    return load_json(file, "results") if file.exists() else {"tasks": {}, "antibodies": {}}


def keep_published(found: dict[str, Any], filled: dict[str, Any], options: argparse.Namespace) -> None:
    """Add the rows of the published page that were not measured again."""
    published = read_published(options)
    for task, old in published["tasks"].items():
        mine = found.setdefault(task, {"rows": [], "draws": [], "live": None})
        for part in ("rows", "draws"):
            measured = {(one.get("split", 0), one["eps"]) for one in mine[part]}
            mine[part] += [one for one in old[part] if (one.get("split", 0), one["eps"]) not in measured]
            mine[part].sort(key=lambda one: (one.get("split", 0), one["eps"]))
        mine["live"] = mine["live"] or old["live"]
    for name, rows in published["antibodies"].items():
        filled[name] = filled.get(name) or rows


def recovery(records: Sequence[Record], examples: Sequence[Example]) -> list[float]:
    """Return the share of masked residues that equal the original, with a 95% interval over sequences."""
    shares = [
        sum(a == b for a, b in zip("".join((one.answer or "").split()), example.gold, strict=True)) / len(example.gold)
        for one, example in zip(records, examples, strict=True)
    ]
    return [float(np.mean(shares)), *bootstrap(shares)]


def numbers_of(found: dict[str, Any], filled: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return what the page is made of: settings, and the results of tasks and models that have some."""
    antibodies = {name: rows for name, rows in filled.items() if rows}
    models = f" --antibody-models {' '.join(antibodies)} --models DIR --data DIR" if antibodies else ""
    names = ("tasks", "pool", "pilot", "calibration", "splits", "risks")
    return {
        "command": f"python runs/tune.py --page{models}",
        "settings": {name: getattr(options, name) for name in names},
        "tasks": {task: one for task, one in found.items() if one["rows"]},
        "antibodies": antibodies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--antibody-models", nargs="*", default=[], choices=list(CHAINS))
    parser.add_argument("--models", type=Path, help="folder of sapiens-vh, sapiens-vl, antiberty")
    parser.add_argument("--data", type=Path, help="folder of the antibodies")
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "tune")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--pool", type=int, default=POOL)
    parser.add_argument("--pilot", type=int, default=PILOT)
    parser.add_argument("--calibration", type=int, default=CALIBRATION)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--antibody-splits", type=int, default=ANTIBODY_SPLITS)
    parser.add_argument("--risks", type=float, nargs="+", default=RISKS)
    parser.add_argument("--missing", action="store_true", help="measure only what the published page lacks")
    parser.add_argument("--page", action="store_true", help="write the page when everything is measured")
    parser.add_argument("--stored", action="store_true", help="decode nothing: use what is measured or published")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.own, options.model = True, "tiny"
    options.antibodies = {"antiberty": 330}  # 45 times larger than Sapiens
    options.antibody_sizes = {"antiberty": (30, 200)}  # 2% needs 170 even without a change
    found = {task: tune_task(task, options) for task in options.tasks}
    filled = {name: tune_antibodies(name, options) for name in options.antibody_models}
    if options.page and options.stored:
        keep_published(found, filled, options)
    if options.page:
        options.out.mkdir(parents=True, exist_ok=True)
        publish("tune", numbers_of(found, filled, options), options)


if __name__ == "__main__":
    run_script(main)

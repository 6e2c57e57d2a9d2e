"""Typed decisions on the bundled tasks: accuracy, forward passes and calibration of ways to read a slot.

    python runs/decide.py
    python runs/decide.py --parts calibration certified      # the other parts of the published page stay as they are

Each way decodes the same problems; temperature and conformal quantile come from other problems, decoded in the same
way. Recipes are certified as `foretell tune --questions` does, and compared with full decoding on held-out problems.
Decodings are stored, so a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from decide_numbers import (
    COVERAGE,
    CalibratedRow,
    CertifiedRow,
    Row,
    check_calibration,
    compare,
    describe_answers,
    expect_coverage,
    summarise,
)
from decide_page import CALIBRATION, draw, view
from decide_tune import RISKS, SIZES, certify, write_inputs
from foretell.decide.answers import Decision
from foretell.decide.decide import decide_iter
from foretell.decide.plan import DecisionPlan
from foretell.decide.questions import Choice, Integer, Predicate, Question
from foretell.engine.certificate import read_certificate
from foretell.engine.engine import Engine, load
from foretell.engine.folder import DecisionTemplate, decision_templates
from foretell.errors import ForetellError
from foretell.loop.protocols import Inputs
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.storage import load_json, make_folder, write_file
from foretell.tasks import TASKS as GENERATORS
from foretell.tasks import Problem
from foretell.tasks import draw as draw_tasks
from page import publish
from results_page import RESULTS
from shared import BUNDLED_MODEL, ROOT, SEED, run_script

TASKS = ("choice", "yes_no", "word", "sudoku")
SURE = "transfer=threshold(0.995) stop=prophet(tau=linear({0},{0}),reduce=min,over=masked,clock=tokens)"
WAYS: dict[str, tuple[str, dict[str, int]]] = {
    "one read, no room": ("full", {"steps": 1, "think": 0}),
    "one read": ("full", {"steps": 1}),
    "2 fixed reads": ("full", {"steps": 2}),
    "4 fixed reads": ("full", {"steps": 4}),
    "transfer 0.995, no stop": ("full transfer=threshold(0.995)", {}),
    "transfer 0.97, no stop": ("full transfer=threshold(0.97)", {}),
    "stop at gap 4": (f"full {SURE.format(4)}", {}),
    "default": (DecisionTemplate().recipe, {}),
    "full": ("full", {}),
}  # recipe, options
PARTS = ("ways", "clock", "head", "calibration", "certified", "command")
COMMAND = (240, 60, 0.05, 400)  # inputs, those for the search, risk, and fresh inputs
TIMED, ROUNDS = 64, 3  # problems and repetitions of the clock
VOCABULARY, WIDTH, LABELS = 126_464, 4096, 26  # LLaDA's head, and the letters A to Z
CELLS = [f"{row}{column}" for row in "abcd" for column in "1234"]

__all__ = ["draw", "view"]  # of the page


@dataclass(frozen=True, slots=True)
class Subject:
    """A task as questions: how it is asked, and the place of the right label of each question that counts."""

    name: str
    questions: Mapping[str, Question]
    template: DecisionTemplate
    task: str  # of which the problems are

    def right(self, problem: Problem) -> dict[str, int]:
        if self.name == "sudoku":
            cells, given = problem.response.replace("\n", ""), problem.prompt.replace("\n", "")
            return {name: int(cells[at]) - 1 for at, name in enumerate(CELLS) if given[at] == "0"}
        if self.name == "word":
            return {"q1": int(problem.answer)}
        letter = "ABCD".index(problem.answer.strip())
        return {"q1": letter // 2 if self.name == "yes_no" else letter}


def make_subject(name: str, engine: Engine) -> Subject:
    """Return a task as questions. The problems state their own choices, so the templates' prompts are the input."""
    known = decision_templates(engine.layouts)

    def bare(template: str) -> DecisionTemplate:
        return msgspec.structs.replace(known[template], prompt="{input}")

    if name == "choice":
        return Subject(name, {"q1": Choice("", ["A", "B", "C", "D"], read="letters")}, bare("choice"), "choice")
    if name == "yes_no":
        return Subject(name, {"q1": Predicate()}, bare("predicate"), "choice")
    if name == "word":
        return Subject(name, {"q1": Integer(digits=2)}, bare("integer"), "word")
    cells = {cell: Choice("", ["1", "2", "3", "4"], read="words") for cell in CELLS}
    return Subject(name, cells, known["sudoku"], "sudoku")


def draw_problems(subject: Subject, count: int, seed: int) -> list[Problem]:
    return draw_tasks(GENERATORS[subject.task], np.random.default_rng(seed), count, test=True)


def decide_all(
    engine: Engine, subject: Subject, problems: Sequence[Problem], recipe: str, options: Mapping[str, int], batch: int
) -> list[dict[str, Any]]:
    """Return, per problem, forward passes and for each question the probabilities, the right place and the mass."""
    given: Any = dict(options)
    plan = DecisionPlan.prepare(engine, subject.questions, template=subject.template, recipe=recipe, orders=1, **given)
    done = dict(decide_iter(engine, [one.prompt for one in problems], plan, batch))
    rows = []
    for place, problem in enumerate(problems):
        decision = done[place]
        if isinstance(decision, ForetellError):
            raise decision
        items = [
            {
                "p": _probabilities(decision, name),
                "right": right,
                "mass": round(decision.answers[name].label_mass or 0, 6),
                "thinking": decision.answers[name].thinking,
            }
            for name, right in subject.right(problem).items()
        ]
        rows.append({"forwards": decision.forwards, "items": items})
    return rows


def _probabilities(decision: Decision, name: str) -> list[float]:
    answer: Any = decision.answers[name]
    if hasattr(answer, "probabilities"):
        return [float(f"{one:.5g}") for one in answer.probabilities.values()]
    return [float(f"{one:.5g}") for one in (answer.probability, 1 - answer.probability)]


def stored(
    engine: Engine, subject: Subject, way: str, seed: int, count: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the decisions of one way, or of a recipe, on one set of problems; decode them unless they are stored."""
    if subject.name == "yes_no":  # the slot has the same tokens as that of `choice`, so the decodings are the same
        return halve(stored(engine, make_subject("choice", engine), way, seed, count, options))
    recipe, more = WAYS.get(way, (way, {}))
    key = blake2b(json.dumps([recipe, more, seed, count]).encode(), digest_size=6).hexdigest()
    path = options.work / f"{subject.name}-{key}.json"
    if not path.exists():
        print(f"{subject.name}: {way}, {count} problems", flush=True)
        rows = decide_all(engine, subject, draw_problems(subject, count, seed), recipe, more, options.batch_size)
        make_folder(path.parent)
        write_file(path, json.dumps(rows))
    rows_again: list[dict[str, Any]] = load_json(path, "decisions")
    return rows_again


def halve(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return decisions among four letters as decisions between the first two and the others."""
    return [row | {"items": [_halve(item) for item in row["items"]]} for row in rows]


def _halve(item: dict[str, Any]) -> dict[str, Any]:
    p = item["p"]
    return item | {"p": [p[0] + p[1], p[2] + p[3]], "right": item["right"] // 2}


def measure_clock(engine: Engine, subject: Subject, batch: int) -> dict[str, float]:
    """Return the seconds that each way takes for the same problems: the fastest of some rounds in turn."""
    problems = draw_problems(subject, TIMED, SEED)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, (recipe, options) in WAYS.items():
            started = time.perf_counter()
            decide_all(engine, subject, problems, recipe, options, batch)
            seconds[way].append(time.perf_counter() - started)
    return {way: min(each) for way, each in seconds.items()}


def measure_head(positions: int, rounds: int = 7) -> dict[str, float]:
    """Return the milliseconds of a head with LLaDA's vocabulary: all logits of some positions, and those of labels."""
    config = TransformerConfig(VOCABULARY, VOCABULARY - 1, dim=WIDTH, layers=0, heads=32, kv_heads=32, hidden=WIDTH)
    with torch.inference_mode():
        model: Transformer = Transformer(config).eval()
        columns = torch.arange(positions)[None]
        inputs = Inputs(columns, columns, columns >= 0, columns, columns)
        readout, row = model(inputs), torch.zeros(positions, dtype=torch.long)
        labels = torch.arange(0, 100 * LABELS, 100)
        calls: dict[str, Callable[[], Any]] = {
            "all": lambda: readout(row, columns[0]),
            "labels": lambda: readout.select(row, columns[0], labels),
        }
        found = {}
        for name, call in calls.items():
            times = []
            for _ in range(rounds):
                started = time.perf_counter()
                call()
                times.append(time.perf_counter() - started)
            found[name] = round(1000 * min(times), 3)
    return {"positions": positions, **found}


def measure_ways(engine: Engine, name: str, options: argparse.Namespace) -> list[Row]:
    """Return one row per way."""
    subject = make_subject(name, engine)
    full = stored(engine, subject, "full", SEED, options.limit, options)
    rows = []
    for way, about in WAYS.items():
        tested = stored(engine, subject, way, SEED, options.limit, options)
        # A second set of full decodings would take as long as all the rest.
        learned = [] if way == "full" else stored(engine, subject, way, SEED + 1, options.calibration, options)
        rows.append(summarise(name, way, about, tested, full, learned))
    return rows


def measure_calibration(engine: Engine, name: str, options: argparse.Namespace) -> CalibratedRow:
    """Return how the calibration of the default recipe holds on other problems."""
    subject = make_subject(name, engine)
    learned = stored(engine, subject, "default", SEED + 1, options.calibration, options)
    return check_calibration(name, stored(engine, subject, "default", SEED, options.limit, options), learned)


def measure_certified(engine: Engine, name: str, risk: float, options: argparse.Namespace) -> CertifiedRow:
    """Return the recipe that is certified at a risk, and what it changes on held-out problems."""
    subject = make_subject(name, engine)
    sizes = SIZES["choice" if name == "yes_no" else name]
    problems = draw_problems(subject, sizes.pilot + sizes.calibration, SEED + 2)
    found = certify(name, problems, sizes, risk, options.work / "certified", options.batch_size)
    start = CertifiedRow(name, risk, sizes.pilot, sizes.calibration, found["recipe"], found.get("speedup"))
    if start.recipe is None:
        return start
    full, tested = (stored(engine, subject, way, SEED, sizes.held, options) for way in ("full", start.recipe))
    return compare(start, tested, full)


def run_command(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Tune the yes/no questions with `foretell tune`, decide about fresh inputs, and return what comes out."""
    count, pilot, risk, fresh = COMMAND
    folder = options.work / "command"
    subject = make_subject("yes_no", engine)
    known, others = draw_problems(subject, count, SEED + 3), draw_problems(subject, fresh, SEED + 4)
    write_inputs(known, folder / "inputs.jsonl", [_is_low(one) for one in known])
    write_inputs(others, folder / "more.jsonl")
    write_file(folder / "questions.json", '{"type": "predicate"}')
    tune = (
        f"foretell tune tiny --prompts inputs.jsonl --questions questions.json --risk {risk} --pilot {pilot} "
        "--batch-size 32 --out tuned.json"
    )
    decide = (
        "foretell decide tiny --file more.jsonl --questions questions.json --recipe tuned.json --batch-size 32 "
        "--out answers.jsonl"
    )
    timing = folder / "seconds.json"
    if not timing.exists():
        write_file(timing, json.dumps(_run(tune, folder)))
    if not (folder / "answers.jsonl").exists():
        _run(decide, folder)
    found = read_certificate(folder / "tuned.json")
    assert found.decisions is not None, "the inputs have answers"
    learned = found.decisions["kinds"]["predicate"]
    answers = {}
    for line in (folder / "answers.jsonl").read_text().splitlines():
        row = json.loads(line)
        answers[row["id"]] = row
    given = [answers[str(place)] for place in range(fresh)]
    return describe_answers(given, [_is_low(one) for one in others]) | {
        "tune": tune, "decide": decide, "rows": count, "pilot": pilot, "fresh": fresh,
        "seconds": load_json(timing, "seconds"), "says": found.says[0].upper() + found.says[1:] + ".",
        "recipe": found.recipe, "speedup": found.speedup, "temperature": learned["temperature"],
        "doubt": learned["doubt"], "caution": learned["caution"], "expected": expect_coverage(count, fresh),
    }  # fmt: skip


def _is_low(problem: Problem) -> bool:
    return problem.answer.strip() in "AB"


def _run(command: str, folder: Path) -> float:
    """Run `foretell ...` in a folder. Returns the seconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = shlex.split(command)[1:]
    subprocess.run([sys.executable, "-m", "foretell", *words, "--threads", "1"], cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def keep_published(made: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return what was measured with what is published of everything else."""
    old: dict[str, Any] = load_json(file, "results") if file.exists() else {}
    kept = dict(made)
    for part in ("rows", "calibrated", "certified"):
        again = {one["task"] for one in made.get(part, [])}
        rows = [*made.get(part, []), *(one for one in old.get(part, []) if one["task"] not in again)]
        kept[part] = sorted(rows, key=lambda one: TASKS.index(one["task"]))
    kept["clocks"] = {**old.get("clocks", {}), **made.get("clocks", {})}
    for part in ("heads", "command", "calibration"):
        kept.setdefault(part, old.get(part))
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured again")
    parser.add_argument("--limit", type=int, default=1000, help="problems per task")
    parser.add_argument(
        "--calibration", type=int, default=CALIBRATION, help="other problems, for temperature and quantile"
    )
    parser.add_argument("--risks", type=float, nargs="+", default=RISKS)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "decide", help="folder for decisions")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args()
    options.own, options.model = True, BUNDLED_MODEL
    make_folder(options.out)
    make_folder(options.work)
    engine = load(options.model, device="cpu")
    engine.use_threads(1)
    made: dict[str, Any] = {}
    if "ways" in options.parts:
        made["rows"] = [asdict(row) for name in options.tasks for row in measure_ways(engine, name, options)]
        made["calibration"] = options.calibration
    if "calibration" in options.parts:
        made["calibrated"] = [asdict(measure_calibration(engine, name, options)) for name in options.tasks]
    if "certified" in options.parts:
        pairs = [(name, risk) for name in options.tasks for risk in options.risks]
        made["certified"] = [asdict(measure_certified(engine, *pair, options)) for pair in pairs]
    if "command" in options.parts:
        made["command"] = run_command(engine, options)
    if "clock" in options.parts:
        subjects = {name: make_subject(name, engine) for name in options.tasks}
        made["clocks"] = {name: measure_clock(engine, one, options.batch_size) for name, one in subjects.items()}
    if "head" in options.parts:
        made["heads"] = [measure_head(positions) for positions in (1, 2, 8)]
    kept = keep_published(made, options.out / "decide.json")
    publish("decide", {**kept, "coverage": COVERAGE}, options)


if __name__ == "__main__":
    run_script(main)

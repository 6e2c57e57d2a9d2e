"""Typed decisions on the bundled tasks: accuracy, forward passes and calibration of ways to read a slot.

    python runs/decide.py

Each way decodes the same problems; temperature and conformal quantile come from other problems, decoded in the same
way. Decodings are stored, so a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from decide_page import COVERAGE, Row, describe, plot, summarise
from foretell.decide.answers import Decision
from foretell.decide.decide import decide_iter
from foretell.decide.plan import DecisionPlan
from foretell.decide.questions import Choice, Integer, Predicate, Question
from foretell.engine.engine import Engine, load
from foretell.engine.folder import DecisionTemplate, decision_templates
from foretell.errors import ForetellError
from foretell.loop.protocols import Inputs
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.storage import load_json, make_folder, write_file
from foretell.tasks import TASKS as GENERATORS
from foretell.tasks import Problem, draw
from results_page import RESULTS
from shared import BUNDLED_MODEL, ROOT, SEED, run_script
from text_page import publish

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
TIMED, ROUNDS = 64, 3  # problems and repetitions of the clock
VOCABULARY, WIDTH, LABELS = 126_464, 4096, 26  # LLaDA's head, and the letters A to Z
CELLS = [f"{row}{column}" for row in "abcd" for column in "1234"]


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
    return draw(GENERATORS[subject.task], np.random.default_rng(seed), count, test=True)


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
    """Return the decisions of one way on one set of problems; decode them unless they are stored."""
    if subject.name == "yes_no":  # the slot has the same tokens as that of `choice`, so the decodings are the same
        return halve(stored(engine, make_subject("choice", engine), way, seed, count, options))
    recipe, more = WAYS[way]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--limit", type=int, default=1000, help="problems per task")
    parser.add_argument("--calibration", type=int, default=500, help="other problems, for temperature and quantile")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "decide", help="folder for decisions")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args()
    options.own, options.model = True, BUNDLED_MODEL
    make_folder(options.out)
    engine = load(options.model, device="cpu")
    engine.use_threads(1)
    rows: list[Row] = []
    for name in options.tasks:
        subject = make_subject(name, engine)
        full = stored(engine, subject, "full", SEED, options.limit, options)
        for way, about in WAYS.items():
            tested = stored(engine, subject, way, SEED, options.limit, options)
            # A second set of full decodings would take as long as all the rest.
            learned = [] if way == "full" else stored(engine, subject, way, SEED + 1, options.calibration, options)
            rows.append(summarise(name, way, about, tested, full, learned))
    clocks = {name: measure_clock(engine, make_subject(name, engine), options.batch_size) for name in options.tasks}
    heads = [measure_head(positions) for positions in (1, 2, 8)]
    numbers = {"rows": [asdict(row) for row in rows], "clocks": clocks, "heads": heads, "coverage": COVERAGE}
    publish("decide", describe(rows, clocks, heads, options.calibration), numbers, options, plot(rows))


if __name__ == "__main__":
    run_script(main)

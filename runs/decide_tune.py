"""Certified recipes of decisions, for the page of runs/decide.py.

The code of `foretell tune --questions` searches a ladder on pilot problems and certifies its rungs on others. The
recipe is then compared with full decoding on held-out problems, which are the first ones of the page's test problems.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.certify.decode_store import DecodeStore
from foretell.certify.decodings import evaluation_for
from foretell.certify.losses import Decoded, Loss
from foretell.certify.risk import FIRST_LOOK
from foretell.certify.search import RiskGoal, certify_ladder
from foretell.certify.tune import Tuning
from foretell.evaluation.run import PreparedEvaluation, Watch
from foretell.storage import load_json, make_folder, write_file
from foretell.tasks import Problem

RISKS = (0.05, 0.02, 0.01)
CONFIDENCE = 0.95
DELTA = FIRST_LOOK * (1 - CONFIDENCE)
CELLS = [f"{row}{column}" for row in "abcd" for column in "1234"]
WORDS = {"type": "choice", "read": "words"}
ASKED: dict[str, tuple[Any, str | None]] = {
    "choice": ({**WORDS, "choices": list("ABCD")}, "predicate"),  # whose prompt lists no choices: the problems do
    "word": ({"type": "integer", "digits": 2}, None),
    "sudoku": ({cell: {**WORDS, "choices": list("1234")} for cell in CELLS}, "sudoku"),
}  # questions, as `foretell tune --questions` takes them, and the name of a template


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of problems."""

    pilot: int
    calibration: int
    held: int


SIZES = {"choice": Sizes(48, 330, 400), "word": Sizes(60, 800, 400), "sudoku": Sizes(48, 330, 400)}


def write_inputs(problems: Sequence[Problem], path: Path, answers: Sequence[Any] | None = None) -> Path:
    """Write problems as a file of inputs, with or without answers."""
    make_folder(path.parent)
    rows: list[dict[str, Any]] = [{"id": str(place), "prompt": one.prompt} for place, one in enumerate(problems)]
    if answers is not None:
        rows = [row | {"answer": right} for row, right in zip(rows, answers, strict=True)]
    lines = [json.dumps(row) for row in rows]
    write_file(path, "\n".join(lines) + "\n")
    return path


def show_stage(title: str, total: int) -> Watch:
    print(f"{title}: {total}", flush=True)
    return lambda _: None


def certify(
    name: str, problems: Sequence[Problem], sizes: Sizes, risk: float, work: Path, batch: int
) -> dict[str, Any]:
    """Return the fastest recipe that is certified for a task at a risk, or full decoding. Results are stored.

    `problems` are those of the pilot and of the calibration set. Every risk is certified as if it were the only one.
    """
    task = "choice" if name == "yes_no" else name
    file = work / f"{name}-{sizes.pilot}-{sizes.calibration}-{risk:g}.json"
    if not file.exists():
        questions, template = ASKED[task]
        asked: dict[str, Any] = {"questions": questions, "template": template, "batch_size": batch, "threads": 1}
        source = write_inputs(problems, work / task / "inputs.jsonl")
        what = evaluation_for("tiny", None, source, "full", None, work / task, {}, **asked)
        store = DecodeStore(PreparedEvaluation.prepare(what), show_stage)
        goal = RiskGoal(risk, CONFIDENCE, _halved() if name == "yes_no" else "answer", against="full")
        examples = store.bench.examples
        tuning = Tuning(store, goal, tuple(examples[: sizes.pilot]), tuple(examples[sizes.pilot :]))
        print(f"{name}: certify {risk:.0%}", flush=True)
        ladder = tuning.search().chosen
        full = store.records("full", tuning.calibration, "calibration: full decoding")
        best = certify_ladder(ladder, tuning.decode_rungs(ladder, full, []), goal, DELTA).fastest
        found: dict[str, Any] = {"ladder": ladder.name, "recipe": None if best is None else store.resolve(best.rung)}
        if best is not None:
            found |= {"risk": best.empirical_risk, "speedup": best.speedup}
        write_file(file, json.dumps(found))
    made: dict[str, Any] = load_json(file, "certified recipe")
    return made


def _halved() -> Loss:
    """Return the loss of the yes/no task: whether the letter is one of the first two changes."""

    def changes(full: Decoded, fast: Decoded, _: Mapping[str, Any]) -> bool:
        return _is_yes(full) != _is_yes(fast)

    return Loss("answer", "gives another answer than full decoding", changes)


def _is_yes(decoded: Decoded) -> bool:
    return json.loads(decoded.answer or "")["q1"] in "AB"

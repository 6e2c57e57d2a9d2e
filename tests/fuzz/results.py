"""Results folders: reading, reporting, and resuming the evaluation."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from random import Random

from foretell.evaluation import run as evaluation
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import read_records
from foretell.evaluation.report import report
from tests.fuzz import world
from tests.fuzz.mutate import damage_file

RECIPES = ("full steps=4", "prophet steps=4")
WEIGHTS = {".jsonl": 8, ".json": 4}  # of files, by suffix


def _prepare(out: Path) -> evaluation.PreparedEvaluation:
    size = {"max_new_tokens": 8}
    what = evaluation.Evaluation(str(world.word_model()), "choice", RECIPES, out, limit=2, trace=True, options=size)
    return evaluation.PreparedEvaluation.prepare(what, world.word_engine())


@cache
def folder() -> Path:
    made = world.word_model().parent / "results"
    evaluation.run(_prepare(made))
    report(made).save(made)
    return made


def run(rng: Random) -> None:
    with world.scratch() as parent:
        out = parent / "results"
        shutil.copytree(folder(), out)
        files = sorted(path for path in out.rglob("*") if path.is_file() and path.suffix)
        (path,) = rng.choices(files, [WEIGHTS.get(path.suffix, 1) for path in files])
        damage_file(rng, path)
        if rng.random() < 0.3:
            records = evaluation.run(_prepare(out))
            assert {record.recipe for record in records} >= set(RECIPES)
            return
        read_manifest(out)
        read_records(out)
        made = report(out)
        made.markdown()
        made.tables(80)
        made.save(out)

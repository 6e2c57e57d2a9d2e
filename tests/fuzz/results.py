"""Results folders: reading, reporting, and resuming the evaluation."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from random import Random

from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import read_records
from foretell.evaluation.report import report
from foretell.evaluation.run import Evaluation, PreparedEvaluation, run as resume
from tests.fuzz import world
from tests.fuzz.mutate import damage_file

RECIPES = ("full steps=4", "prophet steps=4")


def _evaluation(out: Path) -> PreparedEvaluation:
    what = Evaluation(str(world.word_model()), "choice", RECIPES, out, limit=2, trace=True, options={"max_new_tokens": 8})
    return PreparedEvaluation.prepare(what, world.word_engine())


@cache
def _folder() -> Path:
    folder = world.word_model().parent / "results"
    resume(_evaluation(folder))
    report(folder).save(folder)
    return folder


def run(rng: Random) -> None:
    with world.scratch() as parent:
        out = parent / "results"
        shutil.copytree(_folder(), out)
        files = sorted(path for path in out.rglob("*") if path.is_file() and path.suffix)
        weighted = [path for path in files for _ in range(6 if path.suffix == ".jsonl" else 4 if path.name == "manifest.json" else 1)]
        damage_file(rng, rng.choice(weighted))
        if rng.random() < 0.3:
            records = resume(_evaluation(out))
            assert {record.recipe for record in records} >= set(RECIPES)
            return
        read_manifest(out)
        read_records(out)
        made = report(out)
        made.markdown()
        made.tables(80)
        made.save(out)

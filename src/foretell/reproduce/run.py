"""Run the plan: each decoding is an evaluation with its own folder, so that tables share it and any run resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.engine.engine import Engine
from foretell.evaluation.manifest import read_manifest
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch, run
from foretell.reproduce.plan import Decoding, Plan, source_of

# Called before a decoding, with the results that exist; yields what watches the new ones.
Progress = Callable[[Decoding, PreparedEvaluation, list[Record]], AbstractContextManager[Watch]]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Which model is evaluated, and how; `settings` are further fields of `Evaluation`, the same for all decodings."""

    model: str
    out: Path
    student: str | None = None  # the distilled model
    data: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, decoding: Decoding) -> Path:
        who = "student" if decoding.student else "model"
        return self.out / "decodings" / who / decoding.task / decoding.recipe.replace(" ", "_")

    def evaluation(self, decoding: Decoding) -> Evaluation:
        return Evaluation(
            model=self.student if decoding.student and self.student else self.model,
            task=decoding.task,
            recipes=(decoding.recipe,),
            out=self.folder(decoding),
            source=source_of(decoding.task, self.data),
            **self.settings,
        )

    def records(self, decoding: Decoding) -> list[Record]:
        return read_records(self.folder(decoding))

    def hours(self, decoding: Decoding) -> float:
        """Return the time that decoding took, summed over devices and over all runs."""
        return sum(record.wall for record in self.records(decoding)) / 3600

    def device(self, decoding: Decoding) -> str:
        return str(read_manifest(self.folder(decoding))["device"])


def run_plan(what: Reproduction, plan: Plan, progress: Progress, save: Callable[[], object]) -> None:
    """Decode what is missing, table by table, and call `save` after each."""
    engine: Engine | None = None
    loaded = ""
    for table in plan.tables:
        for decoding in sorted(plan.runnable(table.decodings), key=lambda one: one.student):  # loads each model once
            evaluation = what.evaluation(decoding)
            if evaluation.model != loaded:
                engine = None  # frees the other model before this one is loaded
            prepared = PreparedEvaluation.prepare(evaluation, engine)
            engine, loaded = prepared.engine, evaluation.model
            there = what.records(decoding)
            if len(there) < prepared.total:
                prepared.check()
                with progress(decoding, prepared, there) as watch:
                    run(prepared, watch)
        save()

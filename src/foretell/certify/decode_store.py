"""Decodings of one set of examples with any recipe, each recipe in its own folder, made when they are needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from foretell.certify.replay import Case, gather_cases
from foretell.evaluation.benchmark import Example
from foretell.evaluation.manifest import has_manifest, settled
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.run import PreparedEvaluation, Watch, run
from foretell.evaluation.task_recipe import TaskRecipe

Stage = Callable[[str, int], Watch]  # called with a title and a number of decodings before they start
BATCHES = 4  # per worker at least: a process takes seconds to start
LONGEST_NAME = 60  # characters of a folder's name before its hash


def ignore_progress(_title: str, _total: int) -> Watch:
    """Show nothing: the default `Stage`."""
    return lambda _: None


@dataclass(frozen=True, slots=True)
class DecodeStore:
    """Decodes examples of `bench` with any recipe. What is stored is never decoded again."""

    bench: PreparedEvaluation
    stage: Stage = ignore_progress

    def prepare(self, recipe: str, *, trace: bool = False) -> PreparedEvaluation:
        """Return the evaluation of one recipe. Raises an error if the recipe cannot decode these examples."""
        what = self.bench.evaluation
        name = (
            re.sub(r"[^\w.]+", "_", recipe)[:LONGEST_NAME] + "-" + blake2b(recipe.encode(), digest_size=4).hexdigest()
        )
        out = what.out / ("traced" if trace else "plain") / name
        way = TaskRecipe.of(recipe, self.bench.benchmark, what.options)
        first = self.bench.examples[0]
        self.bench.engine.request(first.prompt, way.template(self.bench.engine, first, what.seed))
        return replace(self.bench, evaluation=replace(what, recipes=(recipe,), out=out, trace=trace), recipes=(way,))

    def resolve(self, recipe: str) -> str:
        """Return the complete text of a recipe, with what the examples' layout adds to it."""
        return str(TaskRecipe.of(recipe, self.bench.benchmark, self.bench.evaluation.options).recipe)

    def records(self, recipe: str, examples: Sequence[Example], title: str = "") -> list[Record]:
        """Return the results of a recipe on some examples, in their order; decode those that are missing."""
        traced, plain = self.prepare(recipe, trace=True), self.prepare(recipe)
        there = _stored(traced)
        wanted = [one.id for one in examples if one.id not in there]
        found = {**self._decode(plain, wanted, title or recipe), **there} if wanted else there
        return [found[one.id] for one in examples]

    def cases(self, recipe: str, examples: Sequence[Example], title: str = "") -> tuple[Case, ...]:
        """Return the decodings of some examples with their traces; decode those that are missing."""
        traced = self.prepare(recipe, trace=True)
        found = self._decode(traced, [one.id for one in examples], title or recipe)
        ids = {one.id: place for place, one in enumerate(examples)}
        cases = gather_cases(traced.select(ids), [record for record in found.values() if record.id in ids]).cases
        return tuple(sorted(cases, key=lambda case: ids[case.example.id]))

    def _decode(self, bench: PreparedEvaluation, wanted: Collection[str], title: str) -> dict[str, Record]:
        there = _stored(bench)
        missing = [name for name in wanted if name not in there]
        if not missing:
            return there
        what = bench.evaluation
        workers = min(what.workers, max(1, len(missing) // (BATCHES * what.batch_size)))
        bench = replace(bench, evaluation=replace(what, workers=workers))
        return {record.id: record for record in run(bench, self.stage(title, len(missing)), {*wanted})}


def _stored(bench: PreparedEvaluation) -> dict[str, Record]:
    """Return the stored results by id. Raises RequestError if their folder holds another evaluation."""
    folder = bench.evaluation.out
    if has_manifest(folder):
        settled(folder, bench.manifest(), bench.extends)
    return {record.id: record for record in read_records(folder)}

"""Evaluations that decode each baseline once, with traces, and replay stopping rules on the traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.certify.decode_store import DecodeStore
from foretell.certify.replay import Case
from foretell.errors import RequestError
from foretell.evaluation.manifest import has_manifest, settle
from foretell.evaluation.records import Record, alone, format_record, part, parts, read_records
from foretell.evaluation.run import RULE, PreparedEvaluation, Watch
from foretell.evaluation.task_recipe import TaskRecipe
from foretell.policies.cache.off import Off
from foretell.policies.region.fixed import Fixed
from foretell.policies.stop.never import Never
from foretell.policies.verify.trust import Trust
from foretell.recipes.recipe import Recipe
from foretell.storage import is_folder, make_folder, write_file

DECODED = "decoded"  # folder of the decodings, inside the results folder


@dataclass(frozen=True, slots=True)
class ReplayedEvaluation:
    """An evaluation of several recipes, some of which are replayed on the traces of a baseline.

    The results folder is that of an ordinary evaluation. Decodings are kept in a folder inside it and are never
    repeated, also if other recipes are added. Replays take little time and are repeated in every run, so a stopping
    rule whose code has changed is never reported with old results. No times are measured, because traces take time.
    """

    bench: PreparedEvaluation
    baselines: Mapping[str, str]  # recipes that are replayed -> the recipe on whose traces
    traced: tuple[str, ...]  # decodings that keep their traces

    @classmethod
    def of(cls, bench: PreparedEvaluation, *, trace_all: bool = False) -> ReplayedEvaluation:
        """Choose what to replay. `trace_all` also traces decodings that never stop early and have nothing to replay."""
        baselines = _choose_baselines(bench)
        full = [one.name for one in bench.recipes if trace_all and _effective(bench, one).stop == Never()]
        return cls(bench, baselines, tuple(dict.fromkeys((*full, *baselines.values()))))

    def check(self) -> None:
        """Raise RequestError if the folder holds something else or an example cannot be decoded."""
        out = self.bench.evaluation.out
        self.bench.check(self._extends)
        if has_manifest(out) and not is_folder(self._folder):
            raise RequestError(
                f"{out} holds an evaluation that decoded every recipe; use another folder to replay stopping rules"
            )

    @property
    def store(self) -> DecodeStore:
        return DecodeStore(replace(self.bench, evaluation=replace(self.bench.evaluation, out=self._folder)))

    @property
    def _folder(self) -> Path:
        return self.bench.evaluation.out / DECODED

    @property
    def decoded(self) -> tuple[str, ...]:
        """The recipes to decode: those that are not replayed, and baselines that are not among the recipes."""
        own = (recipe.name for recipe in self.bench.recipes if recipe.name not in self.baselines)
        return tuple(dict.fromkeys((*own, *self.baselines.values())))

    @property
    def total(self) -> int:
        """The number of results, with those of baselines that are not among the recipes."""
        return len(self.bench.examples) * (len(self.decoded) + len(self.baselines))

    def finished(self) -> list[Record]:
        """Return the records of decodings that are already stored."""
        wanted = {one.id for one in self.bench.examples}
        return [
            record
            for text in self.decoded
            for record in read_records(self._prepared(text).evaluation.out)
            if record.id in wanted
        ]

    def cases(self, text: str) -> tuple[Case, ...]:
        """Return the decodings of a recipe with their traces; decode those that are missing."""
        return self.store.cases(text, self.bench.examples)

    def run(self, watch: Watch) -> list[Record]:
        """Decode what is missing, replay the rest, and write all results; `watch` is called with each new one."""
        out, store = self.bench.evaluation.out, replace(self.store, stage=lambda _title, _total: watch)
        make_folder(self._folder)
        with alone(out):
            settle(out, self.bench.manifest(), self._extends)
            found: dict[str, list[Record]] = {}
            for text in self.decoded:
                if text in self.traced:
                    cases = store.cases(text, self.bench.examples)
                    found[text] = [replace(case.record, trace=self._relative(text, case.record)) for case in cases]
                    found |= self._replay(text, cases, watch)
                else:
                    found[text] = store.records(text, self.bench.examples)
            untimed = {"seconds": 0.0, "wall": 0.0}
            records = [replace(record, **untimed) for recipe in self.bench.recipes for record in found[recipe.name]]  # type: ignore[arg-type]
            for old in parts(out):
                old.unlink()
            write_file(part(out, 0), "".join(map(format_record, records)))
        return records

    def _replay(self, baseline: str, cases: Collection[Case], watch: Watch) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = defaultdict(list)
        for recipe in self.bench.recipes:
            if self.baselines.get(recipe.name) == baseline:
                effective = _effective(self.bench, recipe)
                for case in cases:
                    record = case.replay(recipe.name, effective.stop, effective.region)
                    found[recipe.name].append(replace(record, trace=None, trace_index=None))
                    watch(record)
        return found

    def _prepared(self, text: str) -> PreparedEvaluation:
        return self.store.prepare(text, trace=text in self.traced)

    def _relative(self, text: str, record: Record) -> str:
        """Return the file of a trace relative to the results folder."""
        folder = self._prepared(text).evaluation.out.relative_to(self.bench.evaluation.out)
        return str(folder / str(record.trace))

    def _extends(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored manifest is of the same evaluation; recipes may be added, removed or changed."""
        return self.bench.extends({**stored, **{name: self.bench.manifest()[name] for name in ("recipes", "order")}})


def _effective(bench: PreparedEvaluation, recipe: TaskRecipe) -> Recipe:
    """Return what decodes: the recipe with the stopping rule that an option or a certificate names."""
    return recipe.template(bench.engine, bench.examples[0], bench.evaluation.seed).recipe


def _choose_baselines(bench: PreparedEvaluation) -> dict[str, str]:
    """Return the recipes to replay, each with the recipe whose decodings it shares.

    A baseline that is not among the recipes is decoded only if at least two are replayed on it, because decoding one
    recipe that stops early takes less time than decoding its baseline.
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    names: dict[Any, str] = {}
    for recipe in bench.recipes:
        effective = _effective(bench, recipe)
        # No trace has what rechecking an early commit changes, or what a cache would recompute for a stopping rule.
        # A certificate names a complete recipe, from which no text without its rule can be made.
        if effective.verify != Trust() or effective.cache != Off() or recipe.certificate is not None:
            continue
        options = {name: value for name, value in recipe.options.items() if name not in RULE}
        key = (replace(effective, stop=Never(), region=Fixed()), tuple(sorted(options.items())))
        if effective.stop == Never():
            names.setdefault(key, recipe.name)
        else:
            groups[key].append(recipe.name)
    return dict(_pair(groups, names))


def _pair(groups: Mapping[Any, list[str]], names: Mapping[Any, str]) -> Iterator[tuple[str, str]]:
    for key, members in groups.items():
        if key in names or len(members) > 1:
            baseline = names.get(key, f"{members[0]} stop=never")
            yield from ((name, baseline) for name in members)

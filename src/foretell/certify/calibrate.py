"""Calibration: find the fastest stopping rule whose risk is shown to be small, and write its certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foretell.certify.certification import Certification
from foretell.certify.decodings import evaluation_for, example_key, without_stopping
from foretell.certify.ladders import Ladder
from foretell.certify.losses import Loss, Measure
from foretell.certify.outcomes import replay_losses
from foretell.certify.replay import Case, run_study
from foretell.certify.risk import look_share
from foretell.certify.search import (
    Families,
    LadderSearch,
    RiskGoal,
    RungResult,
    certify_ladder,
    find_fastest,
    tabulate_trials,
)
from foretell.engine.certificate import Certificate
from foretell.engine.engine import Engine
from foretell.engine.masked_text import MaskedText
from foretell.engine.request import Layout
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import Given
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch, run
from foretell.extras import require_extra
from foretell.loop.protocols import Region, Stop
from foretell.models.load import Progress
from foretell.policies.cache.off import Off
from foretell.policies.region.fixed import Fixed
from foretell.policies.stop.combined import All, each
from foretell.policies.stop.families import ALL, Family, drop_twins, with_token_clock
from foretell.policies.stop.never import Never
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure
from foretell.policies.verify.trust import Trust
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import format_value

READ_THE_ANSWER = (Persistent, Prophet, Stable, Sure)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The certificate of the chosen rule, and the searches that led to it."""

    certificate: Certificate
    searches: tuple[LadderSearch, ...]  # one per family

    @property
    def search(self) -> LadderSearch:
        """The search that found the certified rule."""
        return find_fastest(self.searches)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A prepared calibration: the examples to decode without stopping, and the rules to replay on them."""

    bench: PreparedEvaluation
    goal: RiskGoal
    families: tuple[Family, ...]
    recipe: Recipe  # used for the decodings; it never stops early
    layouts: tuple[Layout, ...]  # one per example
    examples: tuple[Example, ...]  # without those that a rule was fitted to
    other: PreparedEvaluation | None = None  # the recipe to compare answers with; None: the decodings themselves

    @classmethod
    def prepare(cls, what: Evaluation, goal: RiskGoal, progress: Progress | None = None) -> Calibration:
        """Check all inputs before anything is decoded. `what` has one recipe; its own stopping rule is ignored."""
        require_extra("lab")
        goal = replace(goal, cost="steps")  # which is what a replay counts
        families = goal.families
        bench, orders = without_stopping(what, _combine_readers(families), families[0].region, progress)
        recipe = replace(orders[0].recipe, stop=Never())
        fills = isinstance(bench.examples[0].prompt, MaskedText)  # whose layouts are not known before they are read
        if not fills and _has_one_token(recipe.region, [order.layout for order in orders]):
            families = drop_twins(families)
            goal = replace(goal, family=families)
        if recipe.transfer.parallel:
            families = tuple(map(with_token_clock, families))
        for family in families:
            for rule in family.rules:
                replace(recipe, stop=rule)  # raises if the rule and the recipe cannot be combined
        other = None if goal.against is None else _prepare_comparison(what, goal.against, bench.engine)
        fitted_to = frozenset[str]().union(*(family.fitted_to for family in families))
        examples = tuple(one for one in bench.examples if example_key(one) not in fitted_to)
        made = cls(bench, goal, families, recipe, tuple(order.layout for order in orders), examples, other)
        made._check()
        made.certification.check_labels()
        return made

    @property
    def certification(self) -> Certification:
        against = str(self.recipe if self.other is None else _recipe_of(self.other))
        return Certification(self.bench, self.goal, self.examples, self.layouts, against)

    def _check(self) -> None:
        task, first = self.bench.evaluation.task, self.layouts[0]
        if len({(layout.length, layout.answer) for layout in self.layouts}) > 1:
            raise RequestError(f"the examples of {task} do not share one window and answer region")
        if self.recipe.verify != Trust():
            raise RequestError(
                f"with verify={format_value(self.recipe.verify)} no rule can be certified: the trace of a full "
                "decoding does not record what rechecking an early commit would change"
            )
        if self.recipe.cache != Off() and (first.answer is None or self.recipe.region.sought):
            raise RequestError(
                f"with cache={format_value(self.recipe.cache)} a rule can be certified only if the answer "
                "has a fixed position (a suffix and an answer length): a trace lacks what a commit would compute"
            )
        if not self.examples:
            raise RequestError(
                f"the judge was trained on all these examples of {task}; calibrate it on more, or with another seed"
            )

    @property
    def notes(self) -> list[str]:
        """Warnings to show before the calibration runs."""
        count, look = len(self.bench.examples), self._look(record=False)
        fitted = count - len(self.examples)
        left_out = [f"{fitted} of {count} examples were used to train the judge and are left out"] if fitted else []
        short = self._shortage(look)
        return [*self.certification.warnings(look), *left_out, *([short] if short else [])]

    def run(self, watch: Watch | None = None) -> Calibrated:
        """Decode the examples that are not stored yet, replay every family on them, and certify the fastest rule."""
        wanted = {one.id for one in self.examples}
        cases = [case for case in run_study(self.bench, watch).cases if case.example.id in wanted]
        against = self._comparison_records(cases, watch)
        look = self._look()
        found = [self._search(family, cases, against, look) for family in self.families]
        searches = tuple(search for search, _ in found)
        best = find_fastest(searches)
        (results,) = (results for search, results in found if search is best)
        failure = self._explain_failure(searches, look)
        report = {"frontier": tabulate_trials(best, results, self.goal)}
        return Calibrated(self.certification.certificate(searches, look, failure, report), searches)

    def _look(self, *, record: bool = True) -> int:
        return self.certification.look(*(self._ladder(family).key for family in self.families), record=record)

    def _ladder(self, family: Family) -> Ladder:
        rungs = tuple(str(replace(self.recipe, stop=rule)) for rule in family.rules)
        return Ladder(family.name, rungs, family.settings, family.knob)

    def _search(
        self, family: Family, cases: Sequence[Case], against: Sequence[Record], look: int
    ) -> tuple[LadderSearch, list[RungResult]]:
        """Return what is certified of a family, and the results of all its rules."""
        steps, (losses,) = replay_losses(cases, family.rules, against, [self.goal.measure])
        full = np.array([one.steps for one in against])
        results = [RungResult(*row, full, len(cases)) for row in zip(losses, steps, strict=True)]
        delta = self.goal.shares[family.name] * self.certification.delta(look)
        return certify_ladder(self._ladder(family), results, self.goal, delta, every=True), results

    def _shortage(self, look: int) -> str | None:
        """Return a message if the examples are too few to certify anything at this look."""
        return self.goal.shortage(len(self.examples), max(self.goal.shares.values()) * look_share(look))

    @property
    def total(self) -> int:
        """The number of decodings that the calibration needs."""
        return self.bench.total + (0 if self.other is None else self.other.total)

    @property
    def finished(self) -> list[Record]:
        """The records of decodings that are already stored."""
        folders = [bench.evaluation.out for bench in (self.bench, self.other) if bench is not None]
        return [record for folder in folders for record in read_records(folder)]

    def _comparison_records(self, cases: Sequence[Case], watch: Watch | None) -> list[Record]:
        if self.other is None:
            return [case.record for case in cases]
        by_id = {record.id: record for record in run(self.other, watch)}
        return [by_id[case.example.id] for case in cases]

    def _explain_failure(self, searches: Sequence[LadderSearch], look: int) -> str:
        count = len(self.examples)
        safest = min(search.trials[0].empirical_risk for search in searches)
        named = " or ".join(search.ladder.name for search in searches)
        graded = self.goal.measure.graded
        lost = f"has a mean loss of {safest:.2%} on" if graded else f"loses {safest:.2%} of"
        more = f"; the next number of fresh examples that allows one loss more is {self.goal.next_useful(count)}"
        why = self._shortage(look) or (
            f"no rule of {named} is shown to have a risk of at most {100 * self.goal.risk:.4g}%; the safest {lost} "
            f"{count} examples{'' if graded else more}"
        )
        return (
            why if self.goal.against is None else f"{why}; use {self.goal.against!r}, the recipe it was compared with"
        )


def calibrate(
    model: str,
    *,
    task: str | None = None,
    prompts: str | Path | Sequence[Given] | None = None,
    recipe: str = "full",
    family: Families = ALL,
    risk: float = 0.01,
    confidence: float = 0.95,
    loss: str | Measure | Loss = "answer",
    against: str | None = None,
    out: str | Path | None = None,
    work: str | Path | None = None,
    watch: Watch | None = None,
    options: Mapping[str, Any] | None = None,
    **evaluation: Any,
) -> Calibrated:
    """Certify the fastest rule of `family` whose risk is at most `risk` with `confidence`; write it to `out`.

    Several families share 1 - `confidence`. Answers and steps are compared with those of the same recipe without
    stopping, or with those of another recipe, `against`. `options` are the options of `generate` (a window, a suffix,
    ...), `evaluation` those of `Evaluation` (limit, seed, batch_size, workers, ...). Decodings are stored in `work`, so
    repeating an interrupted call resumes it.
    """
    goal = RiskGoal(risk, confidence, loss, family, against)
    what = evaluation_for(model, task, prompts, recipe, out, work, options or {}, **evaluation)
    made = Calibration.prepare(what, goal).run(watch)
    if out is not None:
        made.certificate.save(out)
    return made


def _combine_readers(families: Sequence[Family]) -> Stop:
    """Return a rule that reads everything the families read; `Sure` stands for all rules that read only the answer."""
    rules = (rule for family in families for rule in each(family.rules[-1]))
    readers = tuple(dict.fromkeys(Sure() if isinstance(rule, READ_THE_ANSWER) else rule for rule in rules))
    return All(readers) if len(readers) > 1 else readers[0]


def _has_one_token(region: Region, layouts: Sequence[Layout]) -> bool:
    """Return whether the answer regions have a fixed place and one token each."""
    if not isinstance(region, Fixed):
        return False
    return all((region.length or (layout.answer or (0, 0))[1]) == 1 for layout in layouts)


def _prepare_comparison(what: Evaluation, recipe: str, engine: Engine) -> PreparedEvaluation:
    """Prepare the other recipe on the same examples, in a subfolder of the first evaluation's folder."""
    bench = PreparedEvaluation.prepare(replace(what, recipes=(recipe,), out=what.out / "against"), engine)
    if bench.recipes[0].recipe.stop != Never():
        raise RequestError(f"answers must be compared with a recipe that never stops early, got {recipe!r}")
    bench.check()
    return bench


def _recipe_of(bench: PreparedEvaluation) -> Recipe:
    return bench.recipes[0].template(bench.engine, bench.examples[0], bench.evaluation.seed).recipe

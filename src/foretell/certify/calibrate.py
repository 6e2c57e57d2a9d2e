"""Calibration: find the fastest stopping rule whose risk is proven to be small, and write its certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foretell.certify.decodings import evaluation_for, example_key, without_stopping
from foretell.certify.outcomes import replay_rules
from foretell.certify.replay import Case, run_study
from foretell.certify.search import Families, FamilySearch, RiskGoal, Trial, find_fastest
from foretell.engine.certificate import WINDOW_OPTIONS, Certificate
from foretell.engine.engine import Engine
from foretell.engine.request import Layout
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import LABELLED, Given, Prompts
from foretell.evaluation.manifest import examples_hash
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
from foretell.version import __version__

READ_THE_ANSWER = (Persistent, Prophet, Stable, Sure)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The certificate of the chosen rule, and the searches that led to it."""

    certificate: Certificate
    searches: tuple[FamilySearch, ...]  # one per family

    @property
    def search(self) -> FamilySearch:
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
        families = goal.families
        bench, orders = without_stopping(what, _combine_readers(families), families[0].region, progress)
        recipe = replace(orders[0].recipe, stop=Never())
        if _has_one_token(recipe.region, [order.layout for order in orders]):
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
        return made

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
                "has a fixed place (a suffix and an answer length): a trace lacks what a commit would compute elsewhere"
            )
        if not self.examples:
            raise RequestError(
                f"the judge was trained on all these examples; calibrate it on others of {task}: more, or another seed"
            )
        unlabelled = [one.id for one in self.examples if not one.data.get(LABELLED, True)]
        if self.goal.loss == "success" and unlabelled:
            raise RequestError(
                f'the loss "success" needs right answers, and {len(unlabelled)} prompts (first: {unlabelled[0]}) have '
                'no "answer"; give them one, or use the loss "consistency"'
            )

    @property
    def notes(self) -> list[str]:
        """Warnings to show before the calibration runs."""
        count = len(self.bench.examples)
        fitted, distinct = count - len(self.examples), len({example_key(one) for one in self.examples})
        warnings = {
            f"{fitted} of {count} examples were used to train the judge and are left out": fitted,
            f"only {distinct} of {len(self.examples)} examples are distinct, but all count as independent draws: "
            "the certificate holds only for questions that repeat as often": len(self.examples) - distinct,
            self.goal.shortage(len(self.examples)) or "": 1,
        }
        return [text for text, applies in warnings.items() if text and applies]

    def run(self, watch: Watch | None = None) -> Calibrated:
        """Decode the examples that are not stored yet, replay every family on them, and certify the fastest rule."""
        wanted = {one.id for one in self.examples}
        cases = [case for case in run_study(self.bench, watch).cases if case.example.id in wanted]
        against = self._comparison_records(cases, watch)
        searches = tuple(
            FamilySearch.run(family, replay_rules(cases, family.rules, against=against), self.goal)
            for family in self.families
        )
        return Calibrated(self._certificate(searches), searches)

    @property
    def total(self) -> int:
        """The number of decodings that the calibration needs."""
        return self.bench.total + (0 if self.other is None else self.other.total)

    @property
    def finished(self) -> list[Record]:
        """The records of decodings that are already stored."""
        folders = [bench.evaluation.out for bench in (self.bench, self.other) if bench is not None]
        return [record for folder in folders for record in read_records(folder)]

    def _comparison_records(self, cases: Sequence[Case], watch: Watch | None) -> list[Record] | None:
        if self.other is None:
            return None
        by_id = {record.id: record for record in run(self.other, watch)}
        return [by_id[case.example.id] for case in cases]

    def _certificate(self, searches: Sequence[FamilySearch]) -> Certificate:
        what, engine, first = self.bench.evaluation, self.bench.engine, self.layouts[0]
        search = find_fastest(searches)
        chosen, pins = search.boldest, {layout.pins for layout in self.layouts}
        against = str(self.recipe if self.other is None else _recipe_of(self.other))
        rungs = [str(replace(self.recipe, stop=rule)) for rule in search.family.rules]
        rung = None if chosen is None else search.trials.index(chosen)
        asked = self.bench.recipes[0].options
        return Certificate(
            recipe=against if rung is None else rungs[rung],
            certified=chosen is not None,
            says=self._explain_failure(searches) if chosen is None else self._describe_promise(chosen),
            against=against,
            fills=False,
            window=first.length,
            answer=first.answer and list(first.answer),
            pins=[list(pin) for pin in first.pins] if len(pins) == 1 else None,
            options={name: asked[name] for name in (*WINDOW_OPTIONS, "chat") if asked.get(name) is not None},
            model=engine.name,
            **asdict(engine.backend),
            task=None if what.task == Prompts.name else what.task,
            examples_sha256=examples_hash(self.examples),
            examples=len(self.examples),
            pilot=0,
            seed=what.seed,
            loss=self.goal.loss,
            risk=self.goal.risk,
            confidence=self.goal.confidence,
            look=1,
            delta=round(1 - self.goal.level, 12),
            empirical_risk=0.0 if chosen is None else round(chosen.empirical_risk, 6),
            upper_bound=round(search.bound, 6),
            cost="steps",
            speedup=1.0 if chosen is None else round(chosen.speedup, 4),
            ladder=search.family.name,
            rungs=rungs,
            rung=rung,
            version=__version__,
        )

    def _describe_promise(self, chosen: Trial) -> str:
        goal, count = self.goal, len(self.examples)
        full = "full decoding" if goal.against is None else f"{goal.against!r}"
        loses = (
            f"gives a different answer than {full}" if goal.loss == "consistency" else f"loses a right answer of {full}"
        )
        errors = round(chosen.empirical_risk * count)
        shared = f"; {len(self.families)} families of rules were tried and share delta" if self.families[1:] else ""
        return (
            f"with confidence {goal.confidence:g}, stopping early {loses} on at most {100 * goal.risk:.4g}% of "
            f"examples like the {count} it was calibrated on ({errors} of those){shared}"
        )

    def _explain_failure(self, searches: Sequence[FamilySearch]) -> str:
        count = len(self.examples)
        safest = min(search.trials[0].empirical_risk for search in searches)
        named = " or ".join(search.family.name for search in searches)
        why = self.goal.shortage(count) or (
            f"no rule of {named} is shown to have a risk of at most {100 * self.goal.risk:.4g}%; the safest loses "
            f"{safest:.2%} of {count} examples, and the next number of examples that allows one loss more is "
            f"{self.goal.next_useful(count)}"
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
    loss: str = "consistency",
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

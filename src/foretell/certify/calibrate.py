"""Calibration: the fastest stopping rule of some families whose risk is shown to be small, with its certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.certify.decodings import evaluation_for, example_key, without_stopping
from foretell.certify.families import ALL, Family, by_tokens
from foretell.certify.outcomes import outcomes
from foretell.certify.replay import Case, studied
from foretell.certify.search import Families, FamilySearch, RiskGoal, Trial, fastest
from foretell.engine.certificate import Certificate
from foretell.engine.engine import Engine
from foretell.engine.folder import folder_of
from foretell.engine.request import Layout
from foretell.errors import RequestError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.prompts import LABELLED, Given, Prompts
from foretell.evaluation.manifest import examples_hash
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.run import Evaluation, PreparedEvaluation, Watch, run
from foretell.extras import require_extra
from foretell.loop.protocols import Stop
from foretell.policies.cache.off import Off
from foretell.policies.stop.combined import All, each
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
    certificate: Certificate
    walks: tuple[FamilySearch, ...]  # one along each family

    @property
    def walk(self) -> FamilySearch:
        """The one that the rule is of."""
        return fastest(self.walks)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration made ready: what is decoded in full, and the rules to be replayed on it."""

    bench: PreparedEvaluation
    goal: RiskGoal
    families: tuple[Family, ...]
    recipe: Recipe  # of the decodings
    layouts: tuple[Layout, ...]  # of all examples
    examples: tuple[Example, ...]  # those that no rule has been fitted to
    other: PreparedEvaluation | None = None  # whose answers count; None: those of the decodings themselves

    @classmethod
    def prepare(cls, what: Evaluation, goal: RiskGoal) -> Calibration:
        """Everything that can be wrong is found here. `what` has one recipe, whose own stopping rule is left out."""
        require_extra("lab")
        families = goal.families
        bench, orders = without_stopping(what, _watching(families), families[0].region)
        recipe = replace(orders[0].recipe, stop=Never())
        if recipe.transfer.parallel:
            families = tuple(map(by_tokens, families))
        for rule in (rule for family in families for rule in family.rules):
            replace(recipe, stop=rule)  # an error where the two do not go together
        other = None if goal.against is None else _against(what, goal.against, bench.engine)
        seen = frozenset[str]().union(*(family.seen for family in families))
        examples = tuple(one for one in bench.examples if example_key(one) not in seen)
        made = cls(bench, goal, families, recipe, tuple(order.layout for order in orders), examples, other)
        made._check()
        return made

    def _check(self) -> None:
        task, first = self.bench.what.task, self.layouts[0]
        if len({(layout.length, layout.answer) for layout in self.layouts}) > 1:
            raise RequestError(f"the examples of {task} do not share one window and answer region")
        if self.recipe.verify != Trust():
            raise RequestError(
                f"with verify={format_value(self.recipe.verify)} no rule can be certified: the trace of a full "
                "decoding does not hold what looking over an early commit would change"
            )
        if self.recipe.cache != Off() and (first.answer is None or self.recipe.region.sought):
            raise RequestError(
                f"with cache={format_value(self.recipe.cache)} a rule can be certified only where the answer is laid "
                "out (a suffix and an answer length): a trace does not hold what a commit would compute elsewhere"
            )
        if not self.examples:
            raise RequestError(
                f"all examples taught the judge; calibrate it on others of {task}: more, or another seed"
            )
        bare = [one.id for one in self.examples if not one.data.get(LABELLED, True)]
        if self.goal.loss == "success" and bare:
            raise RequestError(
                f'the loss "success" needs right answers, and {len(bare)} prompts (first: {bare[0]}) have no "answer"; '
                'give them one, or use the loss "consistency"'
            )

    @property
    def notes(self) -> list[str]:
        """What someone has to know before it runs."""
        count = len(self.bench.examples)
        fitted, fresh = count - len(self.examples), len({example_key(one) for one in self.examples})
        told = {
            f"{fitted} of {count} examples taught the judge and are left out": fitted,
            f"only {fresh} of {len(self.examples)} examples differ, and all are counted as if drawn afresh: what is "
            "shown holds only for questions that repeat as often": len(self.examples) - fresh,
            self.goal.shortage(len(self.examples)) or "": 1,
        }
        return [text for text, applies in told.items() if text and applies]

    def run(self, watch: Watch | None = None) -> Calibrated:
        """Decode what is not there yet, replay every family, walk along it."""
        wanted = {one.id for one in self.examples}
        cases = [case for case in studied(self.bench, watch).cases if case.example.id in wanted]
        against = self._compared(cases, watch)
        walks = tuple(
            FamilySearch.along(family, outcomes(cases, family.rules, against=against), self.goal)
            for family in self.families
        )
        return Calibrated(self._certificate(walks), walks)

    @property
    def total(self) -> int:
        """Decodings that it takes."""
        return self.bench.total + (0 if self.other is None else self.other.total)

    @property
    def there(self) -> list[Record]:
        """Those that are there already."""
        return [one for bench in (self.bench, self.other) if bench is not None for one in read_records(bench.what.out)]

    def _compared(self, cases: Sequence[Case], watch: Watch | None) -> list[Record] | None:
        if self.other is None:
            return None
        by_id = {record.id: record for record in run(self.other, watch)}
        return [by_id[case.example.id] for case in cases]

    def _certificate(self, walks: Sequence[FamilySearch]) -> Certificate:
        what, engine, first = self.bench.what, self.bench.engine, self.layouts[0]
        walk = fastest(walks)
        chosen, pins = walk.boldest, {layout.pins for layout in self.layouts}
        return Certificate(
            stop="never" if chosen is None else chosen.stop,
            certified=chosen is not None,
            says=self._failed(walks) if chosen is None else self._promise(chosen),
            recipe=str(self.recipe),
            against=str(self.recipe if self.other is None else _recipe_of(self.other)),
            window=first.length,
            answer=first.answer and list(first.answer),
            pins=[list(pin) for pin in first.pins] if len(pins) == 1 else None,
            model=folder_of(what.model).name,
            model_sha256=engine.fingerprint,
            dtype=engine.dtype,
            task=None if what.task == Prompts.name else what.task,
            examples_sha256=examples_hash(self.examples),
            examples=len(self.examples),
            seed=what.seed,
            loss=self.goal.loss,
            risk=self.goal.risk,
            confidence=self.goal.confidence,
            empirical_risk=0.0 if chosen is None else round(chosen.empirical_risk, 6),
            upper_bound=round(walk.bound, 6),
            speedup=1.0 if chosen is None else round(chosen.speedup, 4),
            family=walk.family.name,
            setting=None if chosen is None else chosen.setting,
            version=__version__,
        )

    def _promise(self, chosen: Trial) -> str:
        goal, count = self.goal, len(self.examples)
        full = "full decoding" if goal.against is None else f"{goal.against!r}"
        loses = f"gets another answer than {full}" if goal.loss == "consistency" else f"loses a right answer of {full}"
        errors = round(chosen.empirical_risk * count)
        shared = f"; {len(self.families)} families of rules were tried and share that" if self.families[1:] else ""
        return (
            f"with confidence {goal.confidence:g}, stopping early {loses} on at most {100 * goal.risk:.4g}% of "
            f"examples like the {count} it was calibrated on ({errors} of those){shared}"
        )

    def _failed(self, walks: Sequence[FamilySearch]) -> str:
        count = len(self.examples)
        safest = min(walk.trials[0].empirical_risk for walk in walks)
        named = " or ".join(walk.family.name for walk in walks)
        why = self.goal.shortage(count) or (
            f"no member of {named} keeps a risk of {100 * self.goal.risk:.4g}%; the safest already loses {safest:.2%} "
            f"of {count} examples"
        )
        return why if self.goal.against is None else f"{why}; use {self.goal.against!r}, which it was compared with"


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
    """The fastest rule of `family` that keeps `risk` with `confidence` on a task or on prompts, written to `out`.

    Several families share 1 - `confidence`. Answers and steps are compared with those of the recipe without a rule, or
    of another one, `against`. `options` are those of `generate` (a window, a suffix, ...), `evaluation` those of
    `Evaluation` (limit, seed, batch_size, workers, ...). Decodings are kept in `work`, so that the same call again goes
    on where it was.
    """
    goal = RiskGoal(risk, confidence, loss, family, against)
    what = evaluation_for(model, task, prompts, recipe, out, work, options or {}, **evaluation)
    made = Calibration.prepare(what, goal).run(watch)
    if out is not None:
        made.certificate.save(out)
    return made


def _watching(families: Sequence[Family]) -> Stop:
    """A rule that reads what those of the families read: the same one for all that read just the answer."""
    rules = (rule for family in families for rule in each(family.rules[-1]))
    readers = tuple(dict.fromkeys(Sure() if isinstance(rule, READ_THE_ANSWER) else rule for rule in rules))
    return All(readers) if len(readers) > 1 else readers[0]


def _against(what: Evaluation, recipe: str, engine: Engine) -> PreparedEvaluation:
    """The other recipe on the same examples, in a folder of its own inside the first one's."""
    bench = PreparedEvaluation.prepare(replace(what, recipes=(recipe,), out=what.out / "against"), engine)
    if bench.ways[0].recipe.stop != Never():
        raise RequestError(f"answers are compared with those of a recipe that never stops early, got {recipe!r}")
    bench.check()
    return bench


def _recipe_of(bench: PreparedEvaluation) -> Recipe:
    return bench.ways[0].template(bench.engine, bench.examples[0], bench.what.seed).recipe

"""Calibration: the boldest stopping rule of a family whose risk is shown to be small, with its certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foretell.engine.certificate import LOSSES, Certificate
from foretell.engine.engine import Engine, Prompt
from foretell.engine.folder import folder_of
from foretell.engine.options import Order
from foretell.errors import RequestError, one_of
from foretell.lab.benchmark import Example
from foretell.lab.evaluate import Bench, Evaluation, Watch, run
from foretell.lab.families import Family, by_tokens, family_named
from foretell.lab.full import in_full, mark, planned
from foretell.lab.manifest import examples_hash
from foretell.lab.outcomes import Outcomes, outcomes
from foretell.lab.prompts import LABELLED, Prompts
from foretell.lab.replays import Case, studied
from foretell.lab.results import Record, read_records
from foretell.lab.risk import Choice, certify, checked, too_few
from foretell.layout import Layout
from foretell.policies.cache.off import Off
from foretell.policies.stop.never import Never
from foretell.presets import parse
from foretell.recipe import Recipe
from foretell.spec import spell

FAMILY = "prophet-min"  # a mean over several tokens can hide the one that is still unsure


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be shown, of which rules."""

    risk: float = 0.01  # eps: the share of examples that may lose by stopping early
    confidence: float = 0.95  # 1 - delta: how sure that is to be
    loss: str = "consistency"  # or success, which needs right answers
    family: str | Family = FAMILY
    against: str | None = None  # another recipe whose answers and steps count; None: the same without stopping

    def __post_init__(self) -> None:
        checked(self.risk, self.confidence)
        one_of("loss", self.loss, LOSSES)
        family_named(self.family)


@dataclass(frozen=True, slots=True)
class Trial:
    """One member of the family on the calibration set."""

    setting: float
    stop: str
    empirical_risk: float
    p_value: float  # of a risk above the one asked for
    speedup: float  # in steps
    certified: bool


@dataclass(frozen=True, slots=True)
class Calibrated:
    certificate: Certificate
    trials: tuple[Trial, ...]  # the safest first


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration made ready: what is decoded in full, and the rules to be replayed on it."""

    bench: Bench
    goal: Goal
    family: Family
    recipe: Recipe  # of the decodings
    layouts: tuple[Layout, ...]  # of the examples
    other: Bench | None = None  # whose answers count; None: those of the decodings themselves

    @classmethod
    def prepare(cls, what: Evaluation, goal: Goal) -> Calibration:
        """Everything that can be wrong is found here. `what` has one recipe, whose own stopping rule is left out."""
        family = family_named(goal.family)
        if parse(what.recipes[0]).transfer.parallel:
            family = by_tokens(family)
        bench, orders = in_full(what, family.rules[-1], family.region)
        recipe = replace(orders[0].recipe, stop=Never())
        other = None if goal.against is None else _against(what, goal.against, bench.engine)
        layouts = tuple(order.layout for order in orders)
        made = cls(bench, goal, family, recipe, layouts, other)
        made._check()
        return made

    def _check(self) -> None:
        task = self.bench.what.task
        if len({(layout.length, layout.answer) for layout in self.layouts}) > 1:
            raise RequestError(f"the examples of {task} do not share one window and answer region")
        if self.recipe.cache != Off() and self.layouts[0].answer is None:
            raise RequestError(
                f"with cache={spell(self.recipe.cache)} a rule can be certified only where the answer is laid out (a "
                "suffix and an answer length): a trace does not hold what a commit would compute elsewhere"
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
    def examples(self) -> list[Example]:
        """Those that the rules have not been fitted to."""
        return [one for one in self.bench.examples if mark(one) not in self.family.seen]

    @property
    def notes(self) -> list[str]:
        """What someone has to know before it runs."""
        left_out = len(self.bench.examples) - len(self.examples)
        taught = [f"{left_out} of {len(self.bench.examples)} examples taught the judge and are left out"]
        return (taught if left_out else []) + ([self.shortage] if self.shortage else [])

    @property
    def shortage(self) -> str | None:
        """Why there are too few examples to show anything; None if there may be enough."""
        return too_few(len(self.examples), self.goal.risk, self.goal.confidence)

    def run(self, watch: Watch | None = None) -> Calibrated:
        """Decode what is not there yet, replay the family, walk along it."""
        cases = [case for case in studied(self.bench, watch).cases if mark(case.example) not in self.family.seen]
        found = outcomes(cases, self.family.rules, against=self._compared(cases, watch))
        choice = certify(found.losses(self.goal.loss), self.goal.risk, self.goal.confidence)
        return Calibrated(self._certificate(found, choice), self._trials(found, choice))

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

    def _trials(self, found: Outcomes, choice: Choice) -> tuple[Trial, ...]:
        last = -1 if choice.index is None else choice.index
        return tuple(
            Trial(setting, spell(rule), float(risk), float(p), float(speedup), certified=index <= last)
            for index, (setting, rule, risk, p, speedup) in enumerate(
                zip(
                    self.family.settings,
                    self.family.rules,
                    choice.risks,
                    choice.p_values,
                    found.speedups(),
                    strict=True,
                )
            )
        )

    def _certificate(self, found: Outcomes, choice: Choice) -> Certificate:
        what, index, first = self.bench.what, choice.index, self.layouts[0]
        pins = {layout.pins for layout in self.layouts}
        return Certificate(
            stop="never" if index is None else spell(self.family.rules[index]),
            certified=index is not None,
            says=self._says(choice),
            recipe=str(self.recipe),
            against=str(self.recipe if self.other is None else self._order(self.other).recipe),
            window=first.length,
            answer=first.answer and list(first.answer),
            pins=[list(pin) for pin in first.pins] if len(pins) == 1 else None,
            model=folder_of(what.model).name,
            model_sha256=self.bench.engine.fingerprint,
            dtype=self.bench.engine.dtype,
            task=None if what.task == Prompts.name else what.task,
            examples_sha256=examples_hash(self.examples),
            examples=len(self.examples),
            seed=what.seed,
            loss=self.goal.loss,
            risk=self.goal.risk,
            confidence=self.goal.confidence,
            empirical_risk=0.0 if index is None else round(float(choice.risks[index]), 6),
            upper_bound=round(choice.bound, 6),
            speedup=1.0 if index is None else round(float(found.speedups()[index]), 4),
            family=self.family.name,
            setting=None if index is None else self.family.settings[index],
            version=version("foretell"),
        )

    @staticmethod
    def _order(bench: Bench) -> Order:
        return bench.ways[0].order(bench.engine, bench.examples[0], bench.what.seed)

    def _says(self, choice: Choice) -> str:
        goal, count = self.goal, len(self.examples)
        if choice.index is None:
            safest = f"its safest member already loses {float(choice.risks[0]):.2%} of {count} examples"
            return self.shortage or f"no member of {self.family.name} keeps a risk of {100 * goal.risk:.4g}%; {safest}"
        full = "full decoding" if goal.against is None else f"{goal.against!r}"
        loses = f"gets another answer than {full}" if goal.loss == "consistency" else f"loses a right answer of {full}"
        seen = round(float(choice.risks[choice.index]) * count)
        return (
            f"with confidence {goal.confidence:g}, stopping early {loses} on at most {100 * goal.risk:.4g}% of "
            f"examples like the {count} it was calibrated on ({seen} of those)"
        )


def calibrate(
    model: str,
    *,
    task: str | None = None,
    prompts: str | Path | Sequence[Prompt] | None = None,
    recipe: str = "full",
    family: str | Family = FAMILY,
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
    """The boldest rule of `family` that keeps `risk` with `confidence` on a task or on prompts, written to `out`.

    Answers and steps are compared with those of the recipe without a rule, or of another one, `against`.
    `options` are those of `generate` (a window, a suffix, ...), `evaluation` those of `Evaluation` (limit, seed,
    batch_size, workers, ...). Decodings are kept in `work`, so that the same call again goes on where it was.
    """
    goal = Goal(risk, confidence, loss, family, against)
    what = planned(model, task, prompts, recipe, out, work, options or {}, **evaluation)
    made = Calibration.prepare(what, goal).run(watch)
    if out is not None:
        made.certificate.save(out)
    return made


def _against(what: Evaluation, recipe: str, engine: Engine) -> Bench:
    """The other recipe on the same examples, in a folder of its own inside the first one's."""
    bench = Bench.prepare(replace(what, recipes=(recipe,), out=what.out / "against"), engine)
    if bench.ways[0].recipe.stop != Never():
        raise RequestError(f"answers are compared with those of a recipe that never stops early, got {recipe!r}")
    return bench

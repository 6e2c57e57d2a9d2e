"""Calibration: the boldest stopping rule of a family whose risk is shown to be small, with its certificate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foretell.engine.certificate import LOSSES, Certificate
from foretell.engine.engine import Prompt
from foretell.engine.files import replacing
from foretell.engine.folder import folder_of, layouts_of
from foretell.engine.options import Options, model_defaults
from foretell.errors import ForetellError, RequestError, one_of
from foretell.lab.evaluate import Bench, Evaluation, Watch
from foretell.lab.families import Family, family_named
from foretell.lab.manifest import examples_hash
from foretell.lab.outcomes import Outcomes, outcomes
from foretell.lab.prompts import LABELLED, Prompts
from foretell.lab.replays import studied
from foretell.lab.risk import Choice, certify, checked, too_few
from foretell.lab.ways import Way
from foretell.layout import Layout
from foretell.policies.region.fixed import Fixed
from foretell.policies.stop.never import Never
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

    @classmethod
    def prepare(cls, what: Evaluation, goal: Goal) -> Calibration:
        """Everything that can be wrong is found here. `what` has one recipe, whose own stopping rule is left out."""
        (text,) = what.recipes
        family = family_named(goal.family)
        bold = Bench.prepare(replace(what, recipes=(f"{text} stop={spell(family.rules[-1])}",), trace=True))
        (way,) = bold.ways
        if family.region is not None and way.recipe.region == Fixed():
            way = replace(way, recipe=replace(way.recipe, region=family.region))
        # Asked with a rule in it, because a window without an answer then gets another region.
        region = way.order(bold.engine, bold.examples[0], what.seed).recipe.region
        plain = Way.of(text, bold.benchmark, what.options).recipe
        elsewhere = f" region={spell(region)}" if region != plain.region else ""
        full = text + elsewhere + (" stop=never" if plain.stop != Never() else "")
        way = Way.of(full, bold.benchmark, what.options)
        bench = replace(bold, what=replace(bold.what, recipes=(full,)), ways=(way,))
        orders = [way.order(bench.engine, example, what.seed) for example in bench.examples]
        made = cls(bench, goal, family, orders[0].recipe, tuple(order.layout for order in orders))
        for example, order in zip(bench.examples, orders, strict=True):
            try:
                bench.engine.request(example.prompt, order)
            except ForetellError as error:
                raise RequestError(f"{what.task}, example {example.id}: {error}") from error
        made._check()
        return made

    def _check(self) -> None:
        if len({(layout.length, layout.answer) for layout in self.layouts}) > 1:
            raise RequestError(f"the examples of {self.bench.what.task} do not share one window and answer region")
        bare = [one.id for one in self.bench.examples if not one.data.get(LABELLED, True)]
        if self.goal.loss == "success" and bare:
            raise RequestError(
                f'the loss "success" needs right answers, and {len(bare)} prompts (first: {bare[0]}) have no "answer"; '
                'give them one, or use the loss "consistency"'
            )

    @property
    def shortage(self) -> str | None:
        """Why there are too few examples to show anything; None if there may be enough."""
        return too_few(len(self.bench.examples), self.goal.risk, self.goal.confidence)

    def run(self, watch: Watch | None = None) -> Calibrated:
        """Decode what is not there yet, replay the family, walk along it."""
        cases = studied(self.bench, watch).cases
        found = outcomes(cases, self.family.rules)
        choice = certify(found.losses(self.goal.loss), self.goal.risk, self.goal.confidence)
        return Calibrated(self._certificate(found, choice), self._trials(found, choice))

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
            window=first.length,
            answer=first.answer and list(first.answer),
            pins=[list(pin) for pin in first.pins] if len(pins) == 1 else None,
            model=folder_of(what.model).name,
            model_sha256=self.bench.engine.fingerprint,
            dtype=self.bench.engine.dtype,
            task=None if what.task == Prompts.name else what.task,
            examples_sha256=examples_hash(self.bench.examples),
            examples=len(self.bench.examples),
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

    def _says(self, choice: Choice) -> str:
        goal, count = self.goal, len(self.bench.examples)
        if choice.index is None:
            safest = f"its safest member already loses {float(choice.risks[0]):.2%} of {count} examples"
            return self.shortage or f"no member of {self.family.name} keeps a risk of {100 * goal.risk:.4g}%; {safest}"
        loses = "gets another answer than full decoding" if goal.loss == "consistency" else "loses a right answer"
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
    out: str | Path | None = None,
    work: str | Path | None = None,
    watch: Watch | None = None,
    options: Mapping[str, Any] | None = None,
    **evaluation: Any,
) -> Calibrated:
    """The boldest rule of `family` that keeps `risk` with `confidence` on a task or on prompts, written to `out`.

    `options` are those of `generate` (a window, a suffix, ...), `evaluation` those of `Evaluation` (limit, seed,
    batch_size, workers, ...). Decodings are kept in `work`, so that the same call again goes on where it was.
    """
    goal = Goal(risk, confidence, loss, family)
    what = planned(model, task, prompts, recipe, out, work, options or {}, **evaluation)
    made = Calibration.prepare(what, goal).run(watch)
    if out is not None:
        made.certificate.save(out)
    return made


def planned(
    model: str,
    task: str | None,
    prompts: str | Path | Sequence[Prompt] | None,
    recipe: str,
    out: str | Path | None,
    work: str | Path | None,
    options: Mapping[str, Any],
    **evaluation: Any,
) -> Evaluation:
    """The evaluation that decodes a calibration set in full."""
    if (task is None) == (prompts is None):
        raise RequestError("calibrate on a task or on prompts" + ("" if task is None else ", not on both"))
    folder = kept_in(out, work)
    described = layouts_of(folder_of(model)) if prompts is not None or "layout" in options else {}
    asked = {**model_defaults(Options(layout=options.get("layout")), described), **options}
    asked.pop("layout", None)
    if prompts is None:
        return Evaluation(model, str(task), (recipe,), folder, options=asked, **evaluation)
    if evaluation.pop("source", None) is not None:
        raise RequestError("prompts are their own data; a data folder is for benchmarks")
    source = Path(prompts) if isinstance(prompts, str | Path) else _written(prompts, folder)
    return Evaluation(model, Prompts.name, (recipe,), folder, source=source, options=asked, **evaluation)


def kept_in(out: str | Path | None, work: str | Path | None) -> Path:
    """The folder of the decodings: beside the rule, unless another one is named."""
    if out is not None and Path(out).suffix != ".json":
        raise RequestError(f"a rule is written to a .json file, got {out}")
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise RequestError(f"cannot write {out}: there is no folder {Path(out).parent}")
    if work is not None:
        return Path(work)
    if out is None:
        raise RequestError("say where to write the rule (out), or at least where to keep the decodings (work)")
    return Path(out).with_suffix(".work")


def _written(prompts: Sequence[Prompt], folder: Path) -> Path:
    """Prompts as a file, which is what workers and a run that goes on read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "prompts.jsonl"
    lines = [{"prompt": one} if isinstance(one, str) else {"messages": list(one)} for one in prompts]
    with replacing(path) as file:
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
    return path

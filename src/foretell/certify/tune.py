"""Tune: find the fastest recipe for a model and its prompts whose risk is shown to be at most a chosen one.

The examples are split at random into a pilot part, on which ladders are compared (`pilot`), and a calibration part,
which is used once: the chosen ladder is decoded and tested rung by rung, from safe to fast, until a rung fails.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from foretell.certify.certification import Certification
from foretell.certify.decode_store import DecodeStore, Stage, ignore_progress
from foretell.certify.decodings import evaluation_for
from foretell.certify.ladders import Ladder
from foretell.certify.losses import Decoded, Loss, Measure, describe_example
from foretell.certify.pilot import Pilot, PilotResult, cost_of
from foretell.certify.risk import examples_needed, look_share, spend
from foretell.certify.search import LadderSearch, RiskGoal, RungResult, best_p_value, certify_ladder
from foretell.certify.tune_decisions import COVERAGE, calibrate, labelled
from foretell.certify.tune_report import make_report
from foretell.engine.certificate import Certificate
from foretell.errors import RequestError, whole, within
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.decisions import Decisions
from foretell.evaluation.benchmarks.prompts import Given
from foretell.evaluation.records import Record
from foretell.evaluation.run import Evaluation, PreparedEvaluation
from foretell.extras import require_extra
from foretell.models.load import Progress
from foretell.policies.sample.greedy import Greedy
from foretell.policies.stop.never import Never

FULL = "full"
PILOT_SHARE, MOST_PILOT, LEAST = 0.25, 400, 8  # of the examples, unless the caller says how many
PORTIONS = (0.25, 0.5, 1.0)  # after these shares of the calibration set, a rung that cannot pass any more is given up


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """A certified recipe, and how it was found."""

    certificate: Certificate
    pilot: PilotResult
    search: LadderSearch

    def save(self, path: str | Path) -> None:
        """Write the tuned file, usable wherever a recipe is."""
        self.certificate.save(path)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A prepared tuning: everything is checked, and nothing is decoded yet."""

    store: DecodeStore
    goal: RiskGoal
    pilot: tuple[Example, ...]
    calibration: tuple[Example, ...]
    coverage: float = COVERAGE  # of the conformal sets of typed decisions

    @classmethod
    def prepare(
        cls,
        what: Evaluation,
        goal: RiskGoal,
        *,
        pilot: int | None = None,
        calibration: int | None = None,
        stage: Stage = ignore_progress,
        progress: Progress | None = None,
        coverage: float = COVERAGE,
    ) -> Tuning:
        """Split the examples and check all inputs. `what` has one recipe, which the others are compared with.

        `pilot` and `calibration` are numbers of examples (default: a quarter, at most 400, and all others).
        """
        require_extra("lab")
        bench = PreparedEvaluation.prepare(what, progress=progress)
        recipe = bench.recipes[0].recipe
        if recipe.stop != Never():
            raise RequestError(
                f"results must be compared with a recipe that never stops early, got {what.recipes[0]!r}"
            )
        if recipe.sample != Greedy():
            raise RequestError(
                f"only greedy decoding can be tuned, got {what.recipes[0]!r}: sampled texts always differ"
            )
        bench.check()
        first, second = split_examples(bench.examples, pilot, calibration, what.seed)
        within("coverage", coverage, 0.0, 1.0, RequestError)
        if coverage != COVERAGE and what.task != Decisions.name:
            raise RequestError(f"a coverage ({coverage:g}) is for typed decisions: give questions too")
        labelled(bench.examples)
        made = cls(DecodeStore(bench, stage), goal, first, second, coverage)
        replace(made.certification, examples=(*first, *second)).check_labels()
        return made

    @property
    def bench(self) -> PreparedEvaluation:
        return self.store.bench

    @property
    def against(self) -> str:
        return self.bench.evaluation.recipes[0]

    @property
    def certification(self) -> Certification:
        bench = self.bench
        way, seed = bench.recipes[0], bench.evaluation.seed
        layouts = [
            bench.engine.request(one.prompt, way.template(bench.engine, one, seed)).layout for one in bench.examples
        ]
        text = self.store.resolve(self.against)
        return Certification(bench, self.goal, self.calibration, layouts, text, len(self.pilot))

    @property
    def notes(self) -> list[str]:
        """Warnings to show before anything is decoded."""
        goal, count, certification = self.goal, len(self.calibration), self.certification
        look = certification.expected_look()
        warnings, short = certification.warnings(look), goal.shortage(count, look_share(look))
        if short is None:
            return warnings
        delta = certification.delta(look)
        least = examples_needed(goal.risk, 1 - delta, goal.measure.graded)
        best = math.ceil(1e4 * goal.best_risk(count, delta)) / 1e4  # rounded down, it could not be shown
        offer = f"the {count} of the calibration set can show a risk of {100 * best:.4g}% at best (--risk {best:.4f})"
        return [*warnings, f"{short}, so provide {total_needed(least)} in all (a part of them is the pilot); {offer}"]

    def run(self) -> Tuned:
        """Decode what is not stored yet, choose a ladder on the pilot part, and certify it on the other part."""
        certification, found = self.certification, self.search()
        look = certification.look(found.chosen.key, record=False)
        short = self.goal.shortage(len(self.calibration), look_share(look))
        if short is None:  # otherwise nothing can be certified, so the look costs nothing
            look = certification.look(found.chosen.key)
        full = self.store.records(self.against, self.calibration, "calibration: full decoding")
        results: list[RungResult] = []
        tested = certify_ladder(
            found.chosen,
            self.decode_rungs(found.chosen, full, results),
            self.goal,
            certification.delta(look),
        )
        search = replace(tested, ladder=self._resolve(tested.ladder))
        failure = self._explain_failure(tested, certification.delta(look), short)
        report = make_report(self, found, tested, results, full, certification.delta(look))
        certificate = certification.certificate([search], look, failure, report)
        return Tuned(self._calibrate(certificate), found, search)

    def _calibrate(self, certificate: Certificate) -> Certificate:
        """Return the certificate of typed decisions with what their labelled rows teach about its recipe."""
        bench = self.bench
        examples = [*self.pilot, *self.calibration]
        learned = calibrate(bench.engine, examples, certificate.chosen, self.coverage, bench.evaluation.batch_size)
        return certificate if learned is None else replace(certificate, decisions=msgspec.to_builtins(learned))

    def search(self) -> PilotResult:
        """Choose a ladder on the pilot part."""
        planned, delta = len(self.calibration), self.first_delta
        return Pilot(self.store, self.goal, self.pilot, planned, delta, self.against).run()

    def _resolve(self, ladder: Ladder) -> Ladder:
        """Return the ladder with recipes that do not depend on a task."""
        return Ladder(ladder.name, tuple(map(self.store.resolve, ladder.rungs)))

    def decode_rungs(self, ladder: Ladder, full: Sequence[Record], results: list[RungResult]) -> Iterator[RungResult]:
        """Decode one rung after the other on the calibration set, and give up one that cannot pass any more."""
        for place, rung in enumerate(ladder.rungs):
            title = f"calibration: rung {place + 1} of {len(ladder.rungs)}"
            for share in PORTIONS:
                count = max(1, round(share * len(self.calibration)))
                result = self.measure(rung, full, count, title)
                if best_p_value(result.losses, result.planned, self.goal) > self.first_delta:
                    break
            results.append(result)
            yield result

    @property
    def first_delta(self) -> float:
        """The largest level at which any look tests; a rung that fails at this level fails at every other."""
        return spend(1 - self.goal.confidence, 1)

    def measure(self, rung: str, full: Sequence[Record], count: int, title: str = "") -> RungResult:
        """Decode the first `count` examples of the calibration set with a rung, and compare them with full decoding."""
        examples, goal = self.calibration[:count], self.goal
        fast = self.store.records(rung, examples, title)
        losses = [
            goal.measure(Decoded.of_record(before), Decoded.of_record(after), describe_example(example))
            for before, after, example in zip(full, fast, examples, strict=False)
        ]
        costs, full_costs = ([cost_of(one, goal.cost) for one in side[:count]] for side in (fast, full))
        return RungResult(np.array(losses), np.array(costs), np.array(full_costs), len(self.calibration))

    def _explain_failure(self, search: LadderSearch, delta: float, short: str | None) -> str:
        count, goal, first = len(self.calibration), self.goal, search.trials[0]
        why = short or (
            f"the safest rung has a mean loss of {first.empirical_risk:.2%} on {first.examples} examples, which "
            f"does not show a risk of at most {100 * goal.risk:.4g}%"
        )
        best = f"{count} examples can show a risk of {goal.best_risk(count, delta):.2%} at best"
        return f"{why}; {best}, so allow a larger risk or provide more examples"


def split_examples(
    examples: Sequence[Example], pilot: int | None, calibration: int | None, seed: int
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split examples at random into a pilot part and a calibration part; those left over are used for neither."""
    total = len(examples)
    if total < 2 * LEAST:
        raise RequestError(f"tuning needs at least {2 * LEAST} examples, got {total}")
    first = pilot_size(total) if pilot is None else pilot
    whole("pilot", first, LEAST, total - LEAST, RequestError)
    second = total - first if calibration is None else calibration
    whole("calibration", second, LEAST, total - first, RequestError)
    mixed = random.Random(seed).sample(list(examples), total)  # noqa: S311 - a choice, not a secret
    return tuple(mixed[:first]), tuple(mixed[first : first + second])


def pilot_size(total: int) -> int:
    """Return how many of the examples the pilot gets by default."""
    return max(LEAST, min(MOST_PILOT, round(PILOT_SHARE * total)))


def total_needed(calibration: int) -> int:
    """Return how many examples leave at least `calibration` of them for the calibration part, by default."""
    return next(total for total in itertools.count(calibration) if total - pilot_size(total) >= calibration)


def tune(
    model: str,
    *,
    prompts: str | Path | Sequence[Given] | None = None,
    texts: str | Path | Sequence[Given] | None = None,
    task: str | None = None,
    risk: float = 0.01,
    confidence: float = 0.95,
    loss: str | Measure | Loss = "answer",
    cost: str = "forwards",
    against: str = FULL,
    pilot: int | None = None,
    calibration: int | None = None,
    questions: Any = None,
    template: str | None = None,
    coverage: float = COVERAGE,
    out: str | Path | None = None,
    work: str | Path | None = None,
    stage: Stage = ignore_progress,
    options: Mapping[str, Any] | None = None,
    **evaluation: Any,
) -> Tuned:
    """Find the fastest recipe whose risk is at most `risk` with `confidence`, for prompts, texts with masks or a task.

    The risk is the mean of a `loss` from 0 to 1, compared with the recipe `against`: "answer", "text", "tokens" (share
    of generated tokens that changed), "success" (needs right answers), or a function `loss(full, fast, example)`.
    With `questions` (as JSON, or a file of it) the prompts are inputs of typed decisions, asked with one of the model's
    templates; those with a right "answer" also give a temperature per kind and conformal sets of this `coverage`.
    `options` are those of `generate` (a window, a suffix, ...), `evaluation` those of `Evaluation` (limit, seed,
    batch_size, workers, ...). The result is written to `out`, decodings are stored in `work`, and repeating an
    interrupted call resumes it.
    """
    goal = RiskGoal(risk, confidence, loss, against=against, cost=cost)
    asked: dict[str, Any] = {"texts": texts, "questions": questions, "template": template}
    what = evaluation_for(model, task, prompts, against, out, work, options or {}, **asked, **evaluation)
    parts: dict[str, Any] = {"pilot": pilot, "calibration": calibration, "coverage": coverage}
    made = Tuning.prepare(what, goal, stage=stage, **parts).run()
    if out is not None:
        made.save(out)
    return made

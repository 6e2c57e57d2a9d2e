"""Make a certificate from tested ladders: count looks, and state the promise and what it is valid for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretell.certify.decodings import example_key
from foretell.certify.losses import LOSSES
from foretell.certify.risk import spend
from foretell.certify.search import LadderSearch, RiskGoal, find_fastest
from foretell.engine.certificate import WINDOW_OPTIONS, Certificate
from foretell.engine.masked_text import MaskedText
from foretell.engine.request import Layout
from foretell.errors import RequestError, StorageError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.benchmarks.decisions import Decisions
from foretell.evaluation.benchmarks.fill import Fill
from foretell.evaluation.benchmarks.prompts import LABELLED, Prompts
from foretell.evaluation.manifest import examples_hash
from foretell.evaluation.records import PATIENCE
from foretell.evaluation.run import PreparedEvaluation
from foretell.storage import is_file, load_json, lock_file, make_folder, write_file
from foretell.version import __version__


@dataclass(frozen=True, slots=True)
class Looks:
    """The certifications that a calibration set was used for, kept in the folder of its decodings.

    Every certification on the same decodings is another chance to certify a bad rung. So each of them spends its own
    part of delta (see `spend`), and the parts of all looks add up to at most delta.
    """

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "looks.json"

    def number(self, look: dict[str, Any]) -> int:
        """Return the number that this look has or would have, from 1. Repeating a look gives the same number."""
        known, wanted = self._read(), json.loads(json.dumps(look))
        return (known.index(wanted) if wanted in known else len(known)) + 1

    def expect(self, look: dict[str, Any]) -> int:
        """Return the number of a look whose ladders are not known yet: that of an earlier one like it, or a new one."""
        known, wanted = self._read(), json.loads(json.dumps(look))
        same = (place for place, one in enumerate(known) if {**one, "tested": wanted["tested"]} == wanted)
        return next(same, len(known)) + 1

    def count(self, look: dict[str, Any]) -> int:
        """Return the number of this look, and record it."""
        make_folder(self.folder)
        with lock_file(self.folder / ".looks.lock", PATIENCE):  # two looks at once must not get one number
            number, known = self.number(look), self._read()
            if number > len(known):
                write_file(self.file, json.dumps([*known, look], indent=1) + "\n")
        return number

    def _read(self) -> list[Any]:
        # A missing list is an empty one, but never a damaged one: that would make all looks first looks again.
        known = load_json(self.file, "list of looks") if is_file(self.file) else []
        if not isinstance(known, list) or not all(isinstance(one, dict) for one in known):
            raise StorageError(f"{self.file} is not a list of looks")
        return known


@dataclass(frozen=True, slots=True)
class Certification:
    """The inputs of a certificate: the decodings, the goal, and the examples of the pilot and the calibration set."""

    bench: PreparedEvaluation
    goal: RiskGoal
    examples: Sequence[Example]  # the calibration set
    layouts: Sequence[Layout]  # of all examples
    against: str  # the recipe that results are compared with
    pilot: int = 0

    def look(self, *about: str, record: bool = True) -> int:
        """Return the number of the look that tests `about` on this calibration set, and record it; see `Looks`."""
        looks, look = Looks(self.bench.evaluation.out), self._describe_look(about)
        return looks.count(look) if record else looks.number(look)

    def expected_look(self) -> int:
        """Return the number that the next look will probably have."""
        return Looks(self.bench.evaluation.out).expect(self._describe_look(()))

    def _describe_look(self, about: Sequence[str]) -> dict[str, Any]:
        goal, measure = self.goal, self.goal.measure
        return {
            "examples": examples_hash(self.examples),
            "goal": [goal.risk, goal.confidence, f"{measure.name} {measure.digest}".strip(), goal.cost],
            "against": self.against,
            "tested": list(about),
        }

    def warnings(self, look: int) -> list[str]:
        """Return what the user should know about a look at these examples before it begins."""
        distinct = len({example_key(one) for one in self.examples})
        folder = self.bench.evaluation.out
        warnings = {
            f"this is look {look} at this calibration set, so it is tested at delta = {self.delta(look):.3g}; on "
            f"examples that are not in {folder} it would be {self.delta(1):.3g}": look - 1,
            f"only {distinct} of {len(self.examples)} examples are distinct, but all count as independent draws: "
            "the certificate holds only for questions that repeat as often": len(self.examples) - distinct,
        }
        return [text for text, shown in warnings.items() if shown]

    def delta(self, look: int) -> float:
        """Return the error probability that a look may spend."""
        return spend(1 - self.goal.confidence, look)

    def check_labels(self) -> None:
        """Raise RequestError if the loss needs reference answers that examples do not have."""
        unlabelled = [one.id for one in self.examples if not one.data.get(LABELLED, True)]
        if self.goal.measure.labelled and unlabelled:
            raise RequestError(
                f'the loss "{self.goal.measure.name}" needs right answers, and {len(unlabelled)} prompts (first: '
                f'{unlabelled[0]}) have no "answer"; give them one, or use the loss "answer"'
            )

    def certificate(
        self, searches: Sequence[LadderSearch], look: int, failure: str, report: dict[str, Any] | None = None
    ) -> Certificate:
        """Return the certificate of the fastest certified rung; `failure` says why there may be none."""
        bench, goal = self.bench, self.goal
        search = find_fastest(searches)
        chosen = search.fastest
        rung = None if chosen is None else search.trials.index(chosen)
        asked, first = bench.recipes[0].options, self.layouts[0]
        fills = isinstance(bench.examples[0].prompt, MaskedText)
        same = len({(layout.length, layout.answer) for layout in self.layouts}) == 1 and not fills
        pins = {layout.pins for layout in self.layouts}
        own = bench.evaluation.task in (Prompts.name, Fill.name, Decisions.name)
        return Certificate(
            recipe=self.against if rung is None else search.ladder.rungs[rung],
            certified=chosen is not None,
            says=failure if chosen is None else self._describe_promise(search, len(searches), look),
            against=self.against,
            fills=fills,
            window=first.length if same else None,
            answer=list(first.answer) if same and first.answer else None,
            pins=[list(pin) for pin in first.pins] if len(pins) == 1 and not fills else None,
            options={name: asked[name] for name in (*WINDOW_OPTIONS, "chat") if asked.get(name) is not None},
            model=bench.engine.name,
            **asdict(bench.engine.backend),
            task=None if own else bench.evaluation.task,
            examples_sha256=examples_hash(self.examples),
            examples=len(self.examples),
            pilot=self.pilot,
            seed=bench.evaluation.seed,
            loss=goal.measure.name,
            risk=goal.risk,
            confidence=goal.confidence,
            look=look,
            delta=round(self.delta(look), 12),
            empirical_risk=0.0 if chosen is None else round(chosen.empirical_risk, 6),
            upper_bound=round(search.bound, 6),
            cost=goal.cost,
            speedup=1.0 if chosen is None else round(chosen.speedup, 4),
            ladder=search.ladder.name,
            rungs=list(search.ladder.rungs),
            rung=rung,
            version=__version__,
            report=report,
        )

    def _describe_promise(self, search: LadderSearch, searches: int, look: int) -> str:
        goal, chosen, loss = self.goal, search.fastest, self.goal.measure
        assert chosen is not None, "only a certified rung promises anything"
        count, most = len(self.examples), f"at most {100 * goal.risk:.4g}%"
        like = f"examples like the {count} it was calibrated on"
        mean = f"(mean loss {chosen.empirical_risk:.2%})"
        if loss == LOSSES["tokens"]:
            says = f"it changes {most} of the tokens of full decoding, on average over {like} {mean}"
        elif loss.graded:
            says = f"its loss {loss.name} is {most} on average over {like} {mean}"
        else:
            says = f"it {loss.about} on {most} of {like} ({round(chosen.empirical_risk * count)} of those)"
        if goal.against not in (None, "full"):
            says = says.replace("full decoding", repr(goal.against))
        shared = f"; {searches} ladders were tested and share delta" if searches > 1 else ""
        again = f"; look {look} at this calibration set" if look > 1 else ""
        return f"with confidence {goal.confidence:g}, {says}{shared}{again}"

"""What every rule of a family makes of every problem, kept on disk; and the judges that are trained for it."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from foretell.certify.families import Family, judged
from foretell.certify.outcomes import Outcomes, outcomes
from foretell.certify.replay import Case
from foretell.certify.train_judge import JudgeConfig, importance, labels, seen, taught
from foretell.evaluation.records import Record
from foretell.policies.stop.judge import Judge
from foretell.recipes.text import format_value
from foretell.storage import replace_file, write_file
from shared import ROOT, SEED, TASKS, TAUGHT_PER_PROBLEM, parser_of, studied

TAUGHT = 500  # problems a task that judges are trained on, and nothing else
COUNT = 2000  # problems a task behind those, to calibrate and to look
FULL = "full"
# What a replay runs through, from the stored trace to the answer in what a commit emits, and whether that is right.
CODE = (
    "errors.py", "extras.py", "loop/*.py", "recipes/*.py", "policies/region/*.py", "policies/stop/*.py",
    "engine/codec.py", "engine/completion.py", "engine/engine.py", "engine/request.py", "engine/trace.py",
    "engine/trace_files.py", "evaluation/answers/*.py", "evaluation/benchmark.py", "evaluation/benchmarks/*.py",
    "evaluation/records.py", "evaluation/sandbox/*.py", "tasks/*.py",
    "certify/decodings.py", "certify/outcomes.py", "certify/replay.py", "certify/train_judge.py",
)  # fmt: skip


def parser(
    doc: str | None, limit: int = COUNT, taught: int = TAUGHT, bundled: Sequence[str] = TASKS
) -> argparse.ArgumentParser:
    """The study's command line with what these scripts add to it."""
    made = parser_of(doc, limit=limit, bundled=bundled)
    told = (
        f"problems that rules are fitted to (default: {taught}); at most {TAUGHT_PER_PROBLEM} times --limit by default"
    )
    made.add_argument("--taught", type=int, help=told)
    made.set_defaults(lessons=taught)
    made.add_argument("--tables", type=Path, help="where replays are kept; default: beside the decodings")
    return made


@dataclass(frozen=True)
class Pool:
    """The problems of a task, decoded under one recipe: the first ones teach, the others are calibrated on.

    Traces are read only when something has to be replayed that was not before.
    """

    task: str
    options: argparse.Namespace
    recipe: str = FULL

    @cached_property
    def every(self) -> tuple[Case, ...]:
        return studied(self.task, self.options, self.recipe, self.options.taught + self.options.limit).cases

    @property
    def lessons(self) -> Sequence[Case]:
        return self.every[: self.options.taught]

    @property
    def cases(self) -> Sequence[Case]:
        return self.every[self.options.taught :]

    @property
    def records(self) -> list[Record]:
        return [case.record for case in self.cases]

    def judge(self, name: str, lesson: JudgeConfig) -> Family:
        """A judge that was taught on the first problems, as a family of rules under this name."""
        file = self._folder / f"judge-{_digest(str(lesson), str(self._span[:3]), VERSION)}.json"
        if not file.exists():
            started = time.perf_counter()
            taught(self.lessons, lesson, {"task": self.task}).save(file)
            print(f"{self.task}: {name} taught in {time.perf_counter() - started:.1f} s", flush=True)
        return replace(judged(file), name=name)

    def importance(self, name: str, lesson: JudgeConfig) -> dict[str, float]:
        """What the judge would miss, on problems that it was not taught on."""
        rule = self.judge(name, lesson).rules[0]
        assert isinstance(rule, Judge)
        file = self._folder / f"importance-{_digest(rule.sha256, str(self._span), VERSION)}.json"
        if not file.exists():
            cases = self.cases[: self.options.taught]
            found = importance(rule.head, seen(cases, rule.head.names), labels(cases))
            write_file(file, json.dumps(found))
        known: dict[str, float] = json.loads(file.read_text(encoding="utf8"))
        return known

    def replayed(self, family: Family, against: Pool | None = None) -> Outcomes:
        """A family on the other problems; compared with another recipe's answers, if it is given."""
        rules = [format_value(rule) for rule in family.rules]
        whole = [*rules, str(family.region), str(self._span), VERSION]
        other = "" if against is None else against.recipe
        file = self._folder / f"{family.name}-{_digest(*whole, other)}.npz"
        if file.exists():
            with np.load(file) as kept:
                return Outcomes(**kept)
        started = time.perf_counter()
        found = outcomes(self.cases, family.rules, family.region, None if against is None else against.records)
        with replace_file(file) as part, part.open("wb") as out:
            np.savez_compressed(out, steps=found.steps, full=found.full, changed=found.changed, lost=found.lost)
        took = time.perf_counter() - started
        print(f"{self.task}, {family.name}: {len(rules)} rules on {len(found.full)} traces in {took:.1f} s", flush=True)
        return found

    def ideal(self) -> tuple[float, float]:
        """The speedups of who knows the final answer: stops where a commit first emits it, or where it stays."""
        file = self._folder / f"ideal-{_digest(str(self._span), VERSION)}.json"
        if not file.exists():
            right = torch.split(labels(self.cases), [len(case.trace) for case in self.cases])
            first = sum(int(one.int().argmax()) + 1 for one in right)
            stays = sum(len(one) - int(one.flip(0).int().cumprod(0).sum()) + 1 for one in right)
            write_file(file, json.dumps([sum(map(len, right)) / steps for steps in (first, stays)]))
        first_match, to_stay = json.loads(file.read_text(encoding="utf8"))
        return first_match, to_stay

    @property
    def _span(self) -> tuple[str, int, int, int]:
        return self.options.decodings.name, SEED, self.options.taught, self.options.limit

    @property
    def _folder(self) -> Path:
        parent: Path = self.options.tables or self.options.decodings / "tables"
        folder = parent / self.task / self.recipe.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def sources() -> list[Path]:
    """The files of `CODE`."""
    return sorted(file for pattern in CODE for file in (ROOT / "src" / "foretell").glob(pattern))


# A change of the code makes replays anew. Taken when it is imported: a file that changes later is not what runs.
VERSION = _digest(*(file.read_text(encoding="utf8") for file in sources()))

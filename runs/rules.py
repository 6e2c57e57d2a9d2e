"""Replay families of rules on the problems of a task, and train judges; results are stored on disk."""

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

from foretell.certify.outcomes import Outcomes, replay_rules
from foretell.certify.replay import Case
from foretell.certify.train_judge import JudgeConfig, collect_features, collect_labels, fit_judge, measure_importance
from foretell.evaluation.records import Record
from foretell.policies.stop.families import Family, judge_family
from foretell.policies.stop.judge import Judge
from foretell.recipes.text import format_value
from foretell.storage import replace_file, write_file
from shared import ROOT, SEED, TASKS, TAUGHT_PER_PROBLEM, load_study, make_parser

TAUGHT = 500  # problems per task used only to train judges
COUNT = 2000  # problems per task after those, for calibration and testing
FULL = "full"
# The code that a replay depends on, from the stored trace to the graded answer.
CODE = (
    "errors.py", "extras.py", "storage.py", "loop/*.py", "recipes/*.py", "policies/region/*.py", "policies/stop/*.py",
    "engine/codec.py", "engine/completion.py", "engine/engine.py", "engine/request.py", "engine/trace.py",
    "engine/trace_files.py", "evaluation/answers/*.py", "evaluation/benchmark.py", "evaluation/benchmarks/*.py",
    "evaluation/records.py", "evaluation/sandbox/*.py", "tasks/*.py",
    "certify/decodings.py", "certify/losses.py", "certify/outcomes.py", "certify/replay.py", "certify/train_judge.py",
)  # fmt: skip


def make_rules_parser(
    doc: str | None, limit: int = COUNT, taught: int = TAUGHT, bundled: Sequence[str] = TASKS
) -> argparse.ArgumentParser:
    """Return the study's argument parser with the options of these scripts added."""
    made = make_parser(doc, limit=limit, bundled=bundled)
    about = f"problems to fit rules to, by default at most {TAUGHT_PER_PROBLEM} times --limit (default: {taught})"
    made.add_argument("--taught", type=int, help=about)
    made.set_defaults(default_taught=taught)
    made.add_argument("--tables", type=Path, help="folder for replays (default: next to the decodings)")
    return made


@dataclass(frozen=True)
class Pool:
    """The problems of a task, decoded with one recipe: the first for training, the others for calibration.

    Traces are read only if a replay is not stored yet.
    """

    task: str
    options: argparse.Namespace
    recipe: str = FULL

    @cached_property
    def every(self) -> tuple[Case, ...]:
        return load_study(self.task, self.options, self.recipe, self.options.taught + self.options.limit).cases

    @property
    def training_cases(self) -> Sequence[Case]:
        return self.every[: self.options.taught]

    @property
    def cases(self) -> Sequence[Case]:
        return self.every[self.options.taught :]

    @property
    def records(self) -> list[Record]:
        return [case.record for case in self.cases]

    def train_judge(self, name: str, config: JudgeConfig) -> Family:
        """Train a judge on the first problems, or load it; return it as a family of rules with this name."""
        file = self._folder / f"judge-{_digest(str(config), str(self._span[:3]), VERSION)}.json"
        if not file.exists():
            started = time.perf_counter()
            fit_judge(self.training_cases, config, {"task": self.task}).save(file)
            print(f"{self.task}: {name} trained in {time.perf_counter() - started:.1f} s", flush=True)
        return replace(judge_family(file), name=name)

    def importance(self, name: str, config: JudgeConfig) -> dict[str, float]:
        """Return the importance of each feature of the judge, on problems that it was not trained on."""
        rule = self.train_judge(name, config).rules[0]
        assert isinstance(rule, Judge)
        file = self._folder / f"importance-{_digest(rule.sha256, str(self._span), VERSION)}.json"
        if not file.exists():
            cases = self.cases[: self.options.taught]
            found = measure_importance(rule.head, collect_features(cases, rule.head.names), collect_labels(cases))
            write_file(file, json.dumps(found))
        known: dict[str, float] = json.loads(file.read_text(encoding="utf8"))
        return known

    def replay(self, family: Family, against: Pool | None = None) -> Outcomes:
        """Replay a family on the calibration problems; compare with the answers of `against`, if given."""
        rules = [format_value(rule) for rule in family.rules]
        whole = [*rules, str(family.region), str(self._span), VERSION]
        other = "" if against is None else against.recipe
        file = self._folder / f"{family.name}-{_digest(*whole, other)}.npz"
        if file.exists():
            with np.load(file) as kept:
                return Outcomes(**kept)
        started = time.perf_counter()
        found = replay_rules(self.cases, family.rules, family.region, None if against is None else against.records)
        with replace_file(file) as part, part.open("wb") as out:
            np.savez_compressed(out, steps=found.steps, full=found.full, changed=found.changed, lost=found.lost)
        took = time.perf_counter() - started
        print(f"{self.task}, {family.name}: {len(rules)} rules on {len(found.full)} traces in {took:.1f} s", flush=True)
        return found

    def oracle_speedups(self) -> tuple[float, float]:
        """Return the speedups of an oracle that stops when the final answer first appears, and when it stays."""
        file = self._folder / f"ideal-{_digest(str(self._span), VERSION)}.json"
        if not file.exists():
            right = torch.split(collect_labels(self.cases), [len(case.trace) for case in self.cases])
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
    """Return the files of `CODE`."""
    return sorted(file for pattern in CODE for file in (ROOT / "src" / "foretell").glob(pattern))


# A change of the code invalidates stored replays. Computed at import, because a file changed later is not what runs.
VERSION = _digest(*(file.read_text(encoding="utf8") for file in sources()))

"""The learned judge compared with gap, entropy and persistence at equal certified risk, on its own and other tasks.

    python runs/judge.py                     # per task, 500 problems for training and 2000 for calibration

Judges are trained on the first problems of a task; every rule is calibrated on the others, on random halves and on
draws with replacement as in runs/certified.py, whose decodings and replays are used. Safe to interrupt: run the same
command again to resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from certified import CONFIDENCE, DRAWS, SPLITS
from foretell.certify.coverage import Coverage, CoverageResult, Sets
from foretell.certify.train_judge import JudgeConfig
from foretell.plots.judge import plot_judge
from foretell.policies.stop.families import FAMILIES, Family
from page import command, percent, problems, prose, publish, subject, table
from rules import Pool, make_rules_parser
from shared import SEED, parse_options, run_script

RISKS = (0.01, 0.02, 0.05)
JUDGES = {
    "judge": JudgeConfig(),
    "judge, answer only": JudgeConfig(look="answer"),
    "judge, logistic": JudgeConfig(hidden=0),
}
RULES = {"smallest gap": "prophet-min", "mean gap": "prophet", "entropy": "entropy", "persistence": "persistence"}
LOSS = "answer"
Found = dict[str, dict[float, CoverageResult]]  # by rule and risk


def certify(pool: Pool, family: Family) -> dict[float, CoverageResult]:
    found = pool.replay(family)
    coverage = Coverage.of(Sets.of(len(found.full), SPLITS, DRAWS, SEED), LOSS, found)
    return {eps: coverage.evaluate_certified(eps, CONFIDENCE) for eps in RISKS}


def measure(pool: Pool) -> Found:
    """Certify every judge and every other rule on the task that the judges were trained on."""
    families = {name: pool.train_judge(name, config) for name, config in JUDGES.items()}
    families |= {name: FAMILIES[family] for name, family in RULES.items()}
    return {name: certify(pool, family) for name, family in families.items()}


def measure_on_other_tasks(pools: Mapping[str, Pool]) -> Found:
    """Certify the judge of each task on every task, named `trained on -> used on`."""
    return {
        f"{teacher} -> {task}": certify(pool, pools[teacher].train_judge("judge", JUDGES["judge"]))
        for task, pool in pools.items()
        for teacher in pools
    }


def cells(kept: Mapping[float, CoverageResult]) -> list[str]:
    return [f"{one.speedup:.2f}x ({percent(one.risk)}%)" for one in kept.values()]


def verdict(found: Mapping[str, Found], across: Found) -> list[str]:
    lines = ["## What this says"]
    for task, mine in found.items():
        at_one = {name: kept[RISKS[0]].speedup for name, kept in mine.items()}
        best = max(RULES, key=lambda name: at_one[name])
        away = {name.split(" -> ")[0]: kept[RISKS[0]].speedup for name, kept in across.items()
                if name.endswith(f"-> {task}") and not name.startswith(f"{task} ")}  # fmt: skip
        gain = at_one["judge"] / at_one[best] - 1
        said = "faster than" if gain > 0.02 else "slower than" if gain < -0.02 else "as fast as"
        others = ", ".join(f"{speed:.2f}x taught on {name}" for name, speed in away.items())
        lines.append(
            f"- {task}, at 1%: the judge has {at_one['judge']:.2f}x, {said} the best other rule ({best}, "
            f"{at_one[best]:.2f}x; within 2% counts as the same)" + (f"; {others}." if others else ".")
        )
    every = [kept for rules in (*found.values(), across) for one in rules.values() for kept in one.values()]
    held = sum(kept.violations <= 1 - CONFIDENCE for kept in every)
    broken = sum(kept.above > 1 - CONFIDENCE for kept in every)
    lines.append(
        f"- Delta is kept in {held} of {len(every)} cases (a rule, where it was taught and used, an eps): at most "
        f"{percent(max(kept.violations for kept in every))}% of the draws have a rule above eps. The held-out risk, "
        f"a noisier measure, is above eps in more than delta of the splits in {broken} cases, at most in "
        f"{percent(max(kept.above for kept in every))}%."
    )
    return lines


def list_weightiest(looks: Mapping[str, Mapping[str, float]], count: int = 5) -> list[list[str]]:
    """Return the most important features of each task's judge."""
    rows = []
    for task, found in looks.items():
        most = sorted(found, key=lambda name: -found[name])[:count]
        rows.append([task, ", ".join(f"{name} {found[name]:.3f}" for name in most)])
    return rows


def markdown(
    found: Mapping[str, Found], across: Found, looks: Mapping[str, Mapping[str, float]], options: argparse.Namespace
) -> list[str]:
    risks = [f"{100 * eps:g}%" for eps in RISKS]
    rows = [[task, name, *cells(kept)] for task, mine in found.items() for name, kept in mine.items()]
    return [
        f"# The judge, {subject(options)}",
        "",
        prose(
            f"{problems(options)} (seed {SEED}), none of which a judge was taught on: those are {options.taught}",
            f"others a task. {SPLITS} random splits: each rule's bar is chosen on one half for a risk eps at",
            f"confidence {CONFIDENCE:g} (loss: {LOSS}), speedup in steps and, in brackets, risk are means over the",
            "other halves. `judge` is a network of 16 units that looks at the answer and at the masks around it,",
            "`answer only` looks at the answer alone, `logistic` has no units between. How often delta is kept is",
            f"counted over {DRAWS} calibration sets as large as a half, drawn from all problems with replacement.",
            command("judge", options),
        ),
        *table(("task", "rule", *risks), rows),
        "## On another task",
        "The same judge, taught on one task and calibrated and used on another.",
        *table(("taught -> used", *risks), [[name, *cells(kept)] for name, kept in across.items()], words=1),
        "## What it looks at",
        "Log loss gained on problems that the judge was not taught on when one feature is shuffled: the five largest.",
        *table(("task", "features"), list_weightiest(looks)),
        *verdict(found, across),
    ]


def main() -> None:
    options = parse_options(make_rules_parser(__doc__))
    pools = {task: Pool(task, options) for task in options.tasks}
    found = {task: measure(pool) for task, pool in pools.items()}
    across = measure_on_other_tasks(pools)
    looks = {task: pool.importance("judge", JUDGES["judge"]) for task, pool in pools.items()}
    numbers: dict[str, Any] = {"limit": options.limit, "taught": options.taught, "splits": SPLITS, "draws": DRAWS}
    whole = {**found, "across": across}
    numbers["importance"] = looks
    numbers["rules"] = {
        where: {name: {str(eps): asdict(one) for eps, one in kept.items()} for name, kept in rules.items()}
        for where, rules in whole.items()
    }
    speedups = {task: {name: kept[RISKS[0]].speedup for name, kept in mine.items()} for task, mine in found.items()}
    publish("judge", markdown(found, across, looks, options), numbers, options, plot_judge(looks, speedups, RISKS[0]))


if __name__ == "__main__":
    run_script(main)

"""The learned judge compared with gap, entropy and persistence at equal certified risk, on its own and other tasks.

    python runs/judge.py                     # per task, 500 problems for training and 2000 for calibration

Judges are trained on the first problems of a task; every rule is calibrated on the others, on random halves and on
draws with replacement as in runs/certified.py, whose decodings and replays are used. Safe to interrupt: run the same
command again to resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from certified import CONFIDENCE, DRAWS, SPLITS
from foretell.certify.coverage import Coverage, CoverageResult, Sets
from foretell.certify.train_judge import JudgeConfig
from foretell.plots.judge import plot_judge
from foretell.policies.stop.families import FAMILIES, Family
from page import Numbers, percent, publish
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


def view(numbers: Numbers) -> dict[str, Any]:
    """Return the rows of the tables, and how the judge compares with the best other rule."""
    found, across = read_results(numbers)
    every = [kept for rules in (*found.values(), across) for one in rules.values() for kept in one.values()]
    return {
        "risks": " | ".join(f"{100 * eps:g}%" for eps in RISKS),
        "rows": [[task, name, *_cells(kept)] for task, mine in found.items() for name, kept in mine.items()],
        "across_rows": [[name, *_cells(kept)] for name, kept in across.items()],
        "features": list_weightiest(numbers["importance"]),
        "tasks": [_compare(task, mine, across) for task, mine in found.items()],
        "cases": len(every),
        "held": sum(kept.violations <= 1 - CONFIDENCE for kept in every),
        "worst": max(kept.violations for kept in every),
        "broken": sum(kept.above > 1 - CONFIDENCE for kept in every),
        "worst_above": max(kept.above for kept in every),
        "confidence": CONFIDENCE,
        "loss": LOSS,
    }


def read_results(numbers: Numbers) -> tuple[dict[str, Found], Found]:
    """Return the stored results by task, and those of judges on other tasks."""
    found = {
        where: {name: {float(eps): CoverageResult(**one) for eps, one in kept.items()} for name, kept in rules.items()}
        for where, rules in numbers["rules"].items()
    }
    across = found.pop("across")
    return found, across


def _cells(kept: Mapping[float, CoverageResult]) -> list[str]:
    return [f"{one.speedup:.2f}x ({percent(one.risk)}%)" for one in kept.values()]


def _compare(task: str, mine: Found, across: Found) -> dict[str, Any]:
    at_one = {name: kept[RISKS[0]].speedup for name, kept in mine.items()}
    best = max(RULES, key=lambda name: at_one[name])
    away = {name.split(" -> ")[0]: kept[RISKS[0]].speedup for name, kept in across.items()
            if name.endswith(f"-> {task}") and not name.startswith(f"{task} ")}  # fmt: skip
    gain = at_one["judge"] / at_one[best] - 1
    said = "faster than" if gain > 0.02 else "slower than" if gain < -0.02 else "as fast as"
    return {"name": task, "judge": at_one["judge"], "said": said, "best": best, "rule": at_one[best], "away": away}


def list_weightiest(looks: Mapping[str, Mapping[str, float]], count: int = 5) -> list[list[str]]:
    """Return the most important features of each task's judge."""
    rows = []
    for task, found in looks.items():
        most = sorted(found, key=lambda name: -found[name])[:count]
        rows.append([task, ", ".join(f"{name} {found[name]:.3f}" for name in most)])
    return rows


def draw(numbers: Numbers) -> Figure:
    found, _ = read_results(numbers)
    speedups = {task: {name: kept[RISKS[0]].speedup for name, kept in mine.items()} for task, mine in found.items()}
    return plot_judge(numbers["importance"], speedups, RISKS[0])


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
    publish("judge", numbers, options)


if __name__ == "__main__":
    run_script(main)

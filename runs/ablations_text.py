"""The text of the ablations page: its tables and the comparison with the paper."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from foretell.evaluation.report import ReportRow
from foretell.reproduce import paper
from page import command, percent, points, problems, prose, spread, subject, table
from shared import SEED, benchmark

REDUCTIONS = ("mean", "min")
NAMES = ("baseline", *(f"Prophet, {reduction}" for reduction in REDUCTIONS))
SCHEDULES = ("staged", "linear", "cosine", "exponential")
PAPER = {  # LLaDA-8B on GSM8K: baseline, Prophet
    **{
        f"window {window}: 16, 32, 64, 128 steps{', full' * (window == 256)}": (
            ", ".join(map(str, budgets.values())),
            f"{paper.PROPHET[window].accuracy} at about {paper.PROPHET[window].steps} steps",
        )
        for window, budgets in paper.BUDGETS.items()
    },
    **{f"{name} remasking": (str(one.baseline), str(one.prophet)) for name, one in paper.REMASKING.items()},
    **{f"block {length}": (str(one.baseline), str(one.prophet)) for length, one in paper.BLOCKS.items()},
    **{f"{name} schedule": ("", f"{one.accuracy} at {one.steps} steps") for name, one in paper.SCHEDULES.items()},
}
NAMED = {
    "remasking random": "random remasking", "remasking low-confidence": "low-confidence remasking",
    "remasking margin": "top-k margin remasking",
}  # fmt: skip
WINDOWS = {
    "word": "The longer window has positions behind the answer, which the model never met in training.",
    "gsm8k": "The suffix stands at the same share of both windows.",
}
Groups = dict[str, list[ReportRow]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is varied on a task."""

    task: str
    windows: Mapping[int, str]  # tasks by window length, the main one first
    varied: str  # the task whose remasking and block length are varied
    own_block: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    plan: Plan
    static: Groups
    full: Groups
    orders: Groups
    blocks: Groups
    taus: Groups


def cells(group: str, name: str, row: ReportRow) -> list[str]:
    change = f"{100 * row.difference:+.1f} ({points(row.difference_low, row.difference_high)})"
    live = name == "baseline" or name.startswith("static")
    compared = ["", ""] if live else [change, percent(row.agreement)]
    interval = spread(row.accuracy_low, row.accuracy_high)
    return [group, name, "live" if live else "replayed", percent(row.accuracy), interval, f"{row.steps:.1f}", *compared]


HEADINGS = ("what varies", "decoder", "how", "accuracy, %", "95%", "steps", "delta", "agrees, %")


def lines_of(groups: Groups, names: tuple[str, ...]) -> list[str]:
    rows = [cells(key, *one) for key, rows in groups.items() for one in zip(names, rows, strict=True)]
    return table(HEADINGS, rows, words=3)


def markdown(found: Found, options: argparse.Namespace) -> list[str]:
    budgets = [cells(key, f"static {row.budget:.0f}", row) for key, rows in found.static.items() for row in rows]
    whole = [cells(key, *one) for key, rows in found.full.items() for one in zip(NAMES, rows, strict=True)]
    theirs = [[name, *values] for name, values in PAPER.items()]
    tau, first = benchmark(found.plan.task, options).thresholds, next(iter(found.plan.windows))
    varied = benchmark(found.plan.varied, options).options["max_new_tokens"]
    return [
        f"# Ablations, {subject(options)}",
        "",
        prose(
            f"{problems(options).replace(' a task', '')} of {found.plan.task} (seed {SEED}) for each row, the same",
            "ones everywhere. Live rows were decoded; replayed rows are Prophet (thresholds",
            f"{tau.high:g}, {tau.mid:g}, {tau.low:g}) asked about the traces of the baseline of their group. Accuracy",
            "with Wilson's 95% interval; delta to that baseline in points, paired, with Tango's 95% interval.",
            command("ablations", options),
        ),
        "", "## Static budgets", WINDOWS[found.plan.task], *table(HEADINGS, budgets + whole, words=3),
        "## Remasking strategies", f"Window {varied}, block {found.plan.own_block}.", *lines_of(found.orders, NAMES),
        "## Block lengths", f"Window {varied}, low-confidence remasking.", *lines_of(found.blocks, NAMES),
        "## Schedules",
        f"All replayed on the same traces (window {first}, low-confidence remasking, block {found.plan.own_block}).",
        "Staged: the paper's plateaus. Linear: the paper's, 8.0 to 3.5. Cosine, exponential: smooth, 7.5 to 2.5.",
        *lines_of(found.taus, SCHEDULES),
        "## The paper's LLaDA-8B on GSM8K",
        *table(("what", "baseline, %", "Prophet, %"), theirs, words=1),
        *verdict(found),
    ]  # fmt: skip


def verdict(found: Found) -> list[str]:
    lines = ["## Beside the paper", "Agrees or differs where 95% intervals tell; otherwise not decided at this n.", ""]
    for key, rows in found.static.items():
        whole, shortest = found.full[key][0], rows[0]
        state = _state(shortest.accuracy_high < whole.accuracy_low, shortest.accuracy_low > whole.accuracy_high)
        lines.append(
            f"- {key}: the paper's accuracy falls with a static budget; here full {percent(whole.accuracy)}, "
            f"{shortest.budget:.0f} steps {percent(shortest.accuracy)}: {state}."
        )
        lines += [_compare_with_static(key, row, rows) for row in found.full[key][1:]]
    for kind, groups in (("remasking", found.orders), ("block", found.blocks)):
        lines += [
            _compare_with_baseline(f"{kind} {key}", rows[0], row) for key, rows in groups.items() for row in rows[1:]
        ]
    ranked = sorted(found.blocks, key=lambda key: -found.blocks[key][0].accuracy)
    best = [f"{key} ({percent(found.blocks[key][0].accuracy)})" for key in ranked]
    lines.append(
        f"- The baseline's block lengths from best to worst: {', '.join(best)}; the paper's: 32, 16, 8, 64, 128."
    )
    for reduction, (staged, *others) in found.taus.items():
        shown = [f"{percent(row.accuracy)} in {row.steps:.1f} steps ({row.recipe})" for row in (staged, *others)]
        lines.append(
            f"- Schedules by the {reduction}: {'; '.join(shown)}. The paper's: staged 77.9 at 160, linear 77.4 at 154."
        )
    return lines


def _compare_with_static(key: str, row: ReportRow, static: list[ReportRow]) -> str:
    """Compare Prophet with the largest static budget that takes no more steps."""
    fitting = [one for one in static if one.steps <= row.steps]
    start = f"- {key}, {row.recipe}: {percent(row.accuracy)} in {row.steps:.1f} steps;"
    if not fitting:
        return f"{start} no static budget here is that small."
    other = max(fitting, key=lambda one: one.steps)
    state = _state(row.accuracy_low > other.accuracy_high, row.accuracy_high < other.accuracy_low)
    return (
        f"{start} the static budget of {other.budget:.0f} steps has {percent(other.accuracy)}. In the paper Prophet's "
        f"point lies above the static ones: {state}."
    )


def _compare_with_baseline(group: str, base: ReportRow, row: ReportRow) -> str:
    """Compare Prophet with its baseline; in the paper it is better in every such case."""
    named = NAMED.get(group, group)
    state = _state(row.difference_low > 0, row.difference_high < 0)
    if named in PAPER:
        said = "the paper's Prophet gains on its baseline ({} -> {})".format(*PAPER[named])
    else:
        said, state = "not in the paper", {"agrees": "a gain", "differs": "a loss"}.get(state, state)
    return (
        f"- {group}, {row.recipe}: {said}; here {percent(base.accuracy)} -> "
        f"{percent(row.accuracy)} in {row.steps:.1f} of {base.steps:.1f} steps: {state}."
    )


def _state(yes: bool, no: bool) -> str:
    return "agrees" if yes else "differs" if no else "not decided at this n"

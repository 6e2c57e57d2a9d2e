"""Early answer convergence: the first step at which the right answer is top-1, with and without a suffix prompt.

    python runs/convergence.py               # 1000 held-out problems a task, each decoded in full under two orders

Everything is read from the traces of full decodings; those of low-confidence remasking are shared with other scripts.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Any

from foretell.lab.statistics import wilson
from foretell.plots.histograms import Panel, histograms, progress, share_by
from shared import SEED, options_of, percent, publish, spread, studied, table

MARKS = (25, 50, 70)
ORDERS = {"full": "low-confidence", "random": "random"}
COUNTERPART = {"word": "GSM8K", "choice": "MMLU"}
PAPER = {  # LLaDA-8B, first match by 25% and 50% of the steps
    ("word", "full"): (7.9, 24.2), ("word-suffix", "full"): (59.7, 75.8),
    ("word", "random"): (88.5, 97.2), ("word-suffix", "random"): (94.6, 97.3),
    ("choice", "full"): (15.1, 21.4), ("choice-suffix", "full"): (99.7, 99.9),
    ("choice", "random"): (95.3, 99.2), ("choice-suffix", "random"): (98.8, 99.6),
}  # fmt: skip
EVEN = 1.0  # points between which the paper's shares count as the same
SURE = {
    "agrees": "agrees", "differs": "differs", "even": "no clear change in either", "open": "not decided at this n"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """One panel: progress in percent of the budget, of the right answers only."""

    task: str
    suffix: bool
    order: str
    of: int  # problems decoded
    first: list[float]
    stays: list[float]

    @property
    def title(self) -> str:
        return f"{self.task}, {'suffix' if self.suffix else 'no suffix'}, {ORDERS[self.order]}"

    @property
    def paper(self) -> tuple[float, float]:
        return PAPER[f"{self.task}{'-suffix' if self.suffix else ''}", self.order]

    def interval(self, mark: float) -> tuple[float, float]:
        """Of the share that matched first by `mark` percent."""
        count = len(self.first)
        return wilson(round((share_by(self.first, mark) or 0.0) * count), count) if count else (0.0, 1.0)


def measured(task: str, suffix: bool, order: str, options: argparse.Namespace) -> Found:
    one = studied(task if suffix else f"{task}-free", options, order)
    budget = one.cases[0].trace.request.budget
    first = [case.first_match for case in one.right if case.first_match is not None]
    stays = [case.last_change for case in one.right if case.last_change is not None]
    return Found(task, suffix, order, len(one.cases), progress(first, budget), progress(stays, budget))


def cells(one: Found) -> list[str]:
    shares = [percent(share_by(values, mark)) for values in (one.first, one.stays) for mark in MARKS]
    interval = spread(*one.interval(50)) if one.first else "-"
    return [one.title, f"{len(one.first)} of {one.of}", *shares, interval, *map(str, one.paper)]


def compared(low: Found, high: Found, change: str) -> str:
    """Whether going from `low` to `high` moves the share by 50% of the steps as it does in the paper."""
    rise = high.paper[1] - low.paper[1]
    before, after = low.interval(50), high.interval(50)
    state = "even" if abs(rise) < EVEN and low.first and high.first else "open"
    if after[0] > before[1] or after[1] < before[0]:
        state = "agrees" if (after[0] > before[1]) is (rise > 0) and abs(rise) >= EVEN else "differs"
    shown = [percent(share_by(one.first, 50)) for one in (low, high)]
    return (
        f"- {change}: the paper reports {low.paper[1]} -> {high.paper[1]} ({COUNTERPART[low.task]}) by 50% of the "
        f"steps, here {shown[0]} -> {shown[1]}: {SURE[state]}."
    )


def verdict(found: list[Found]) -> list[str]:
    at = {(one.task, one.suffix, one.order): one for one in found}
    lines = ["## Beside the paper", "A change counts only where the two 95% intervals do not overlap.", ""]
    for task in COUNTERPART:
        for order, name in ORDERS.items():
            lines.append(compared(at[task, False, order], at[task, True, order], f"{task}, {name}, suffix added"))
        for suffix, name in ((False, "no suffix"), (True, "suffix")):
            pair = at[task, suffix, "full"], at[task, suffix, "random"]
            lines.append(compared(*pair, f"{task}, {name}, random in place of low-confidence"))
    late = [
        f"{one.title}: {percent(share_by(one.first, 50))} first, {percent(share_by(one.stays, 50))} to stay"
        for one in found
    ]
    return [*lines, "", "By half of the steps, for the first time and to stay: " + "; ".join(late) + "."]


def markdown(found: list[Found], limit: int) -> list[str]:
    headings = (
        "decoding", "right", "first, by 25%", "50%", "70%", "to stay, by 25%", "50%", "70%", "95% of first by 50%",
        "paper, 25%", "paper, 50%",
    )  # fmt: skip
    return [
        "# Early answer convergence, bundled model",
        "",
        f"{limit} held-out problems (seed {SEED}), decoded in full; right answers only, read from the traces, nothing",
        "stopped early. First: the first step whose draft spells the final answer at the answer's positions (as the",
        "paper counts). To stay: the step from which it never changes again. Percent of the budget. Without a suffix",
        "the answer's positions are those behind the words that the model wrote itself. The paper's columns: LLaDA-8B",
        "on GSM8K (word) and MMLU (choice), first match. `python runs/convergence.py`",
        *table(headings, [cells(one) for one in found]),
        *verdict(found),
    ]


def main() -> None:
    options = options_of(__doc__)
    found = [
        measured(task, suffix, order, options) for task in COUNTERPART for order in ORDERS for suffix in (False, True)
    ]
    panels = [
        Panel(f"{one.title}\n{len(one.first)} right", {"first match": one.first, "stays from there on": one.stays})
        for one in found
    ]
    numbers: dict[str, Any] = {"seed": SEED, "limit": options.limit, "panels": [asdict(one) for one in found]}
    numbers["shares"] = {
        one.title: {kind: [share_by(values, mark) for mark in MARKS] for kind, values in _kinds(one)} for one in found
    }
    figure = histograms(panels, 4, "% of the budget", MARKS)
    publish("convergence", markdown(found, options.limit), numbers, options, figure)


def _kinds(one: Found) -> list[tuple[str, list[float]]]:
    return [("first", one.first), ("to stay", one.stays)]


if __name__ == "__main__":
    main()

"""The last step at which the answer changed, for right and for wrong answers, on every task.

    python runs/last_change.py               # 1000 held-out problems per task; decodings are shared with other scripts
    python runs/last_change.py --model LLaDA-8B-Instruct --tasks gsm8k mmlu --device cuda

Read from the traces of full decodings.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from foretell.certify.replay import Case
from foretell.evaluation.intervals import wilson
from foretell.plots.histograms import HistogramPanel, plot_histograms, progress, share_after
from page import command, percent, problems, prose, publish, spread, subject, table
from shared import SEED, load_study, make_parser, parse_options, run_script

LATE = 80  # percent of the steps after which a change is late


@dataclass(frozen=True, slots=True)
class Found:
    """Progress of the last change, in percent of the steps taken."""

    task: str
    right: list[float]
    wrong: list[float]
    silent: int  # decodings whose text states no answer

    def late(self, end: str) -> tuple[float, float]:
        values = self.right if end == "right" else self.wrong
        count = round((share_after(values, LATE) or 0.0) * len(values))
        return wilson(count, len(values)) if values else (0.0, 1.0)


def measure(task: str, options: argparse.Namespace) -> Found:
    one = load_study(task, options)
    ends = [[case for case in one.cases if case.record.correct is right] for right in (True, False)]
    right, wrong = ([value for case in cases for value in _progress(case)] for cases in ends)
    return Found(task, right, wrong, len(one.cases) - len(right) - len(wrong))


def _progress(case: Case) -> list[float]:
    return [] if case.last_change is None else progress([case.last_change], len(case.trace))


def rows(one: Found) -> list[list[str]]:
    made = []
    for end, values in (("right", one.right), ("wrong", one.wrong)):
        middle = f"{median(values):.1f}" if values else "-"
        late = [percent(share_after(values, LATE)), spread(*one.late(end)) if values else "-"]
        made.append([one.task, end, str(len(values)), middle, *late])
    return made


def verdict(found: list[Found]) -> list[str]:
    lines = [
        "## Beside the paper",
        prose(
            "The paper reports that wrong answers of LLaDA-8B change late: their last changes pile up in the",
            "last 20% of",
            "the steps. Here that counts as found where the interval for wrong answers lies above 20%, which",
            "even spread",
            "would give, and above the interval for right ones; as differing where it lies below either.",
        ),
        "",
    ]
    for one in found:
        if not one.wrong or not one.right:
            lines.append(
                f"- {one.task}: {len(one.right)} right and {len(one.wrong)} wrong answers: nothing to compare."
            )
            continue
        right, wrong = one.late("right"), one.late("wrong")
        late = wrong[0] > max(right[1], 1 - LATE / 100)
        differs = wrong[1] < max(right[0], 1 - LATE / 100)
        state = "agrees" if late else "differs" if differs else "not decided at this n"
        shares = [percent(share_after(values, LATE)) for values in (one.wrong, one.right)]
        lines.append(
            f"- {one.task}: in the last 20% of the steps {shares[0]}% of the wrong answers and {shares[1]}% of the "
            f"right ones still changed; medians {median(one.wrong):.1f} and {median(one.right):.1f}: {state}."
        )
    return lines


def markdown(found: list[Found], options: argparse.Namespace) -> list[str]:
    headings = ("task", "answers that end", "n", "median, %", "in the last 20%", "95%")
    silent = ", ".join(f"{one.silent} of {one.task}" for one in found if one.silent)
    return [
        f"# The answer's last change, {subject(options)}",
        "",
        prose(
            f"{problems(options)} (seed {SEED}), decoded in full with low-confidence remasking; read from the",
            "traces. The",
            "last step whose draft changed a token of the final answer, in percent of the steps taken; an answer that",
            "stood from the first draft on counts as the first step. Intervals are Wilson's.",
            f"{command('last_change', options)}",
        ),
        *table(headings, [row for one in found for row in rows(one)]),
        f"Left out because they state no answer: {silent or 'none'}.",
        "",
        *verdict(found),
    ]


def main() -> None:
    options = parse_options(make_parser(__doc__))
    found = [measure(task, options) for task in options.tasks]
    panels = [
        HistogramPanel(
            f"{one.task}\n{len(one.right)} right, {len(one.wrong)} wrong",
            {"answers that end right": one.right, "answers that end wrong": one.wrong},
        )
        for one in found
    ]
    numbers: dict[str, Any] = {"limit": options.limit, "tasks": [asdict(one) for one in found]}
    figure = plot_histograms(panels, 4, "last change, % of the steps (numbers: the share up to the line)", (LATE,))
    publish("last_change", markdown(found, options), numbers, options, figure)


if __name__ == "__main__":
    run_script(main)

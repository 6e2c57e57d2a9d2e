"""GPQA: 448 questions (the main set) that experts wrote, with four options. Users provide their own copy.

Its authors ask that no question be published, so this one is made up. The file is a CSV or JSONL with these columns:
 Question "Which particle carries the electromagnetic force?", Correct Answer "The photon",
Incorrect Answer 1 "The gluon", Incorrect Answer 2 "The graviton", Incorrect Answer 3 "The Higgs boson".
"""

from __future__ import annotations

from foretell.evaluation.benchmarks.multiple_choice import MultipleChoice, Question
from foretell.evaluation.benchmarks.reasoning import WINDOW, suffix_layout
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source
from foretell.policies.stop.schedules import Staged


def question(row: DataRow) -> Question:
    """Return the question of a row. The right option comes first in the file, so the options are shuffled."""
    wrong = [row.text(f"Incorrect Answer {number}") for number in (1, 2, 3)]
    options = tuple(option.strip() for option in (row.text("Correct Answer"), *wrong))
    named = row.values.get("Record ID")
    return Question(row.text("Question"), options, 0, named if isinstance(named, str) else "")


GPQA = MultipleChoice(
    name="gpqa",
    source=Source(
        "gpqa",
        ("gpqa_main.csv", "gpqa_main.jsonl"),
        Hub("Idavidrein/gpqa", "gpqa_main", "train"),
        licence="GPQA is gated and never redistributed: give the path of your own copy.",
    ),
    question=question,
    shuffled=True,
    options=suffix_layout(WINDOW, blank=0, answer_length=1),
    thresholds=Staged(8.0, 5.0, 3.5),
)

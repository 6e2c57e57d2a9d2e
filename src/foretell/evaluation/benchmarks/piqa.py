"""PIQA: 1838 everyday goals, each with two suggestions, one of which works.

{"goal": "How do I ready a guinea pig cage for it's new occupants?", "sol1": "Provide the guinea pig with a cage full of
 a few inches of bedding made of ripped paper strips ...", "sol2": "... made of ripped jeans material ...", "label": 0}
"""

from __future__ import annotations

from foretell.evaluation.benchmarks.multiple_choice import MultipleChoice, Question
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source


def question(row: DataRow) -> Question:
    return Question(row.text("goal"), (row.text("sol1"), row.text("sol2")), row.whole("label", 0, 1))


PIQA = MultipleChoice(
    name="piqa",
    # The hub's main revision is a script, which datasets 4 rejects; the converted revision has the same data.
    source=Source(
        "piqa",
        ("hf_validation.jsonl", "validation.jsonl"),
        Hub("ybisk/piqa", "default", "validation", "refs/convert/parquet"),
    ),
    question=question,
    task="Choose the way that reaches the following goal.",
    letters="AB",
)

"""WinoGrande: 1267 sentences with a gap, to be filled with one of two names or things.

{"qID": "3FCO4VKOZ4BJQ6IFC0VAIBK4KTWE7U-2", "sentence": "Sarah was a much better surgeon than Maria so _ always got the
 easier cases.", "option1": "Sarah", "option2": "Maria", "answer": "2"}
"""

from __future__ import annotations

from foretell.evaluation.benchmarks.multiple_choice import MultipleChoice, Question
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source, fingerprint


def question(row: DataRow) -> Question:
    """Return the question of a row. The hub's copy has no qID, so the id is a hash of the text."""
    stem, options = row.text("sentence"), (row.text("option1"), row.text("option2"))
    if "_" not in stem:
        raise row.error("'sentence' has no gap _")
    return Question(stem, options, row.whole("answer", 1, 2) - 1, fingerprint(stem, *options))


WINOGRANDE = MultipleChoice(
    name="winogrande",
    source=Source(
        "winogrande",
        ("dev.jsonl", "hf_validation.jsonl"),
        Hub("allenai/winogrande", "winogrande_xl", "validation"),
    ),
    question=question,
    task="Choose what belongs in the gap _ of the following sentence.",
    letters="AB",
)

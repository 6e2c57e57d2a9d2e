"""HellaSwag: 10042 beginnings, each with four possible continuations.

{"ind": 0, "query": "Roof shingle removal: A man is sitting on a roof. he", "gold": 3,
 "choices": ["is using wrap to wrap a pair of skis.", "is ripping level tiles off.", "is holding a rubik's cube.",
             "starts pulling up roofing on a roof."]}
"""

from __future__ import annotations

import re

from foretell.evaluation.benchmarks.multiple_choice import MultipleChoice, Question
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source

MARK = re.compile(r"\s*\[(?:header|title|step|substeps)\]\s*")


def question(row: DataRow) -> Question:
    """Return the question of a row in either schema: the one above, or the original with ctx, endings and label."""
    if "query" in row:
        return Question(row.text("query"), row.texts("choices"), row.whole("gold", 0, 3))
    stem = f"{row.text('activity_label')}: {remove_marks(row.text('ctx'))}"
    return Question(stem, tuple(map(remove_marks, row.texts("endings"))), row.whole("label", 0, 3))


def remove_marks(text: str) -> str:
    """Remove the markers that come from WikiHow's pages."""
    return MARK.sub(" ", text).strip()


HELLASWAG = MultipleChoice(
    name="hellaswag",
    source=Source(
        "hellaswag",
        ("val_text_10042.jsonl", "hf_validation.jsonl", "hellaswag_val.jsonl"),
        Hub("Rowan/hellaswag", None, "validation"),
    ),
    question=question,
    task="Choose the most sensible way for the following text to go on.",
)

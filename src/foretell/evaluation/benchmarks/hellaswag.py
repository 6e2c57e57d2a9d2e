"""HellaSwag: 10042 beginnings, each with four ways to go on.

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
    """Both schemas: the text copy above, and the original with ctx, endings and label."""
    if "query" in row:
        return Question(row.text("query"), row.texts("choices"), row.whole("gold", 0, 3))
    stem = f"{row.text('activity_label')}: {plain(row.text('ctx'))}"
    return Question(stem, tuple(map(plain, row.texts("endings"))), row.whole("label", 0, 3))


def plain(text: str) -> str:
    """Without the marks that WikiHow's pages leave in the original."""
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

"""MMLU: 14042 questions on 57 subjects with four options each.

{"question": "Find the degree for the given field extension Q(sqrt(2), sqrt(3), sqrt(18)) over Q.",
 "subject": "abstract_algebra", "choices": ["0", "4", "2", "6"], "answer": 1}
"""

from __future__ import annotations

from foretell.evaluation.benchmarks.multiple_choice import MultipleChoice, Question
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source, fingerprint


def question(row: DataRow) -> Question:
    stem, options, subject = row.text("question"), row.texts("choices"), row.text("subject")
    return Question(stem, options, row.whole("answer", 0, 3), f"{subject}/{fingerprint(stem, *options)}")


MMLU = MultipleChoice(
    name="mmlu",
    source=Source("mmlu", ("hf_test.jsonl", "test.jsonl"), Hub("cais/mmlu", "all", "test")),
    question=question,
)

"""ARC-Challenge: 1172 science questions from school exams with three to five options.

{"id": "Mercury_7175875", "question": "An astronomer observes that a planet rotates faster after a meteorite impact.
 Which is the most likely effect of this increase in rotation?", "answerKey": "C", "choices": {"label":
 ["A", "B", "C", "D"], "text": ["Planetary density will decrease.", "Planetary years will become longer.",
 "Planetary days will become shorter.", "Planetary gravity will become stronger."]}}
"""

from __future__ import annotations

from foretell.evaluation.benchmarks.multiple_choice import MultipleChoice, Question, first_letters
from foretell.evaluation.benchmarks.source import DataRow, Hub, Source


def question(row: DataRow) -> Question:
    """Return the question of a row. Some rows label their options 1 to 4; prompts always use letters."""
    choices, key = row.part("choices"), row.text("answerKey")
    labels = choices.texts("label")
    if key not in labels:
        raise row.error(f"'answerKey' {key!r} is not one of the labels {', '.join(labels)}")
    return Question(row.text("question"), choices.texts("text"), labels.index(key), row.text("id"))


ARC_CHALLENGE = MultipleChoice(
    name="arc_challenge",
    source=Source("arc_challenge", ("hf_test.jsonl", "test.jsonl"), Hub("allenai/ai2_arc", "ARC-Challenge", "test")),
    question=question,
    letters=first_letters(5),
)

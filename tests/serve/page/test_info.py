"""What the server tells the page about decisions: examples that work, and whether questions share a canvas."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import foretell
from foretell.serve.examples import find_examples, split_choice
from tests.serve.conftest import Served, serve
from tests.serve.test_openai import client


def info_of(server: Served) -> dict[str, Any]:
    found: dict[str, Any] = json.load(urllib.request.urlopen(f"{server.url}/foretell/info"))
    return found


def probabilities(server: Served, example: dict[str, Any], question: Any) -> list[float]:
    asked: Any = client(server).decisions  # the kind of question is not known to mypy
    done = asked.create(model="tiny", input=example["input"], questions=[question])
    return [one.probability for one in done.answers[0].probabilities]


def test_examples_of_decisions_are_choices_of_the_page(server: Served) -> None:
    """The story, the question and the options are the prompt of an example, which the model was trained to read."""
    drawn = [one.prompt for one in find_examples(server.engine) if one.task == "choice"]
    shown = info_of(server)["decision_examples"]
    assert len(shown) == len(drawn) + 1
    for prompt, example in zip(drawn, shown, strict=False):
        (question,) = example["questions"]
        options = [one.get("value", one.get("label")) for one in question.get("choices") or question["levels"]]
        listed = " ".join(f"{letter}) {option}" for letter, option in zip("ABCD", options, strict=True))
        assert f"{example['input']} {question['instructions']} {listed}" == prompt
    assert {question["type"] for example in shown for question in example["questions"]} == {"choice", "score"}


def test_examples_of_decisions_work(server: Served) -> None:
    *single, double = info_of(server)["decision_examples"]
    right = [0, 3, 3]  # 3 * 4 = 12, 18 * 4 + 24 = 96, 56 + 35 = 91
    for example, place in zip(single, right, strict=True):
        assert probabilities(server, example, example["questions"][0])[place] > 0.9
    sure, unsure = (probabilities(server, double, question) for question in double["questions"])
    assert sure[1] > 0.9  # 56 - 25 = 31
    assert max(unsure) < 0.9
    assert unsure[3] > 0.05  # the right one is not ruled out


def test_a_prompt_is_split_at_its_question() -> None:
    prompt = "Zoe has 5 eggs. She finds 3 more. How many eggs are left? A) 0 to 2 B) 3 to 9"
    assert split_choice(prompt) == (
        "Zoe has 5 eggs. She finds 3 more.",
        "How many eggs are left?",
        ["0 to 2", "3 to 9"],
    )


def test_the_bundled_model_asks_one_question_per_canvas(server: Served) -> None:
    assert info_of(server)["together"] is False


def test_other_models_have_no_examples_and_ask_together(literate: Path) -> None:
    with serve(foretell.load(literate)) as server:
        shown = info_of(server)
    assert (shown["decision_examples"], shown["together"]) == ([], True)


def test_a_bundled_model_without_a_template_has_no_examples() -> None:
    with serve(foretell.load("tiny-sdtt")) as server:
        shown = info_of(server)
    assert shown["examples"] != []
    assert shown["decision_examples"] == []

"""Decisions over HTTP, with the real clients of both dialects."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import typesafe_sdk
from starlette.testclient import TestClient

from foretell.certify.tune import tune
from foretell.decide.questions import Choice, Predicate, Score
from foretell.engine.engine import Engine
from foretell.serve import app
from foretell.serve.problems import Problem
from foretell.serve.questions import MOST_QUESTIONS, DecisionBody, SystemOneBody, read_input, read_questions
from foretell.tasks import TASKS, draw
from tests.serve.conftest import PATIENCE, Gated, Served, serve, wait_for
from tests.serve.test_openai import ask, client
from tests.serve.test_worker import WITHOUT_EFFECT, send_raw

INPUT = "Noah has 3 baskets with 4 plums each. How many plums does he have now?"
RANGES = ["0 to 22", "23 to 49", "50 to 81", "82 to 99"]
CHOICE: dict[str, Any] = {
    "type": "choice",
    "name": "range",
    "instructions": "",
    "choices": [{"value": one} for one in RANGES],
}


def decide(server: Served, *questions: Any, **options: Any) -> Any:
    return client(server).decisions.create(model="tiny", input=INPUT, questions=list(questions), **options)


def test_a_choice(server: Served) -> None:
    done = decide(server, CHOICE)
    (answer,) = done.answers
    alone: Any = server.engine.decide(INPUT, {"range": Choice("", RANGES)})
    assert (answer.type, answer.name, answer.choice) == ("choice", "range", "0 to 22")
    assert [one.value for one in answer.probabilities] == RANGES
    found = {one.value: one.probability for one in answer.probabilities}
    assert found == pytest.approx(dict(alone.answer.probabilities), abs=1e-6)
    assert sum(found.values()) == pytest.approx(1)
    assert answer.confidence == pytest.approx(alone.answer.confidence)
    assert done.usage.total_tokens == done.usage.input_tokens + 1
    work = done.model_extra["foretell"]
    assert (work["steps"], work["forwards"]) == (alone.steps, alone.forwards)
    assert work["answers"]["range"]["label_mass"] > 0.9


def test_scores_and_predicates(server: Served) -> None:
    score = {"type": "score", "instructions": "", "levels": [{"label": one} for one in RANGES]}
    (level,) = decide(server, score).answers
    alone: Any = server.engine.decide(INPUT, Score("", RANGES))
    assert level.score == pytest.approx(alone.answer.value, abs=1e-6)
    assert [one.label for one in level.probabilities] == RANGES
    assert [one.value for one in level.probabilities] == [0, 1, 2, 3]
    text = f"{INPUT} A) 0 to 22 B) 23 to 49 C) 50 to 81 D) 82 to 99"
    yes = client(server).decisions.create(
        model="tiny", input=text, questions=[{"type": "predicate", "name": "low", "instructions": ""}]
    )
    first: Any = yes.answers[0]
    assert first.type == "predicate"
    low: Any = server.engine.decide(text, Predicate(""))
    assert first.probability == pytest.approx(low.answer.probability, abs=1e-6)


def test_an_unsure_answer_is_a_refusal(server: Served) -> None:
    done = decide(server, CHOICE, extra_body={"on_unsure": "abstain", "sure": 1.0})
    assert (done.answers[0].type, done.answers[0].name) == ("refusal", "range")
    assert done.model_extra["foretell"]["answers"]["range"]["abstained"]
    theirs = {"model": "tiny", "state": INPUT, "on_unsure": "abstain", "questions": {
        "range": {"type": "choice", "criteria": dict.fromkeys(RANGES)},
    }}  # fmt: skip
    with httpx2.Client(base_url=server.url, timeout=PATIENCE) as http:
        unsure, sure = (
            http.post("/v1/systemone", json=theirs | {"sure": sure}).json()["answers"]["range"] for sure in (1.0, 0.0)
        )
    assert (unsure["choice"], unsure["abstained"]) == ("0 to 22", True)  # the format needs a choice
    assert "abstained" not in sure


def test_our_own_parameters(server: Served) -> None:
    one = decide(server, CHOICE, extra_body={"steps": 1}).model_extra["foretell"]
    assert one["forwards"] == 1
    full = decide(server, CHOICE, extra_body={"recipe": "full"}).model_extra["foretell"]
    assert full["forwards"] > 10
    two = decide(server, CHOICE, extra_body={"orders": 2}).model_extra["foretell"]
    assert two["answers"]["range"]["reads"] == 2
    assert decide(server, CHOICE, extra_body={"user": "me"}).model_extra["foretell"]["notes"] == [WITHOUT_EFFECT]


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "input_image"),
        (
            {"input": [{"role": "user", "content": [
                {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
            ]}]},
            "input",
            "prompt_cache_breakpoint is not supported",
        ),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "1"}]}, "input", "function_call"),
        ({"input": []}, "input", "list of messages"),
        ({"input": [5]}, "input", "input[0] must be a message"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input", "role must be one of"),
        ({"input": [{"role": "user", "content": 5}]}, "input", "a text or a list of parts"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input", "text must be a text"),
        ({"questions": []}, "questions", "from 1 to 400"),
        ({"questions": [{"type": "box", "instructions": ""}]}, "questions", "predicate, choice or score"),
        ({"questions": [{"type": "choice", "instructions": ""}]}, "questions", "shape of a 'choice' question"),
        ({"questions": [CHOICE, CHOICE]}, "questions", "no other question has"),
        ({"questions": [CHOICE | {"choices": [{"value": "a"}]}]}, "questions", "questions[0]"),
        ({"extra_body": {"recipe": "judge"}}, "recipe", "unknown recipe"),
        ({"extra_body": {"recipe": "swift transfer.level=1"}}, "recipe", "level"),
        ({"extra_body": {"think": -1}}, "think", "think must be"),
        ({"extra_body": {"on_unsure": "guess"}}, "on_unsure", "on_unsure"),
        ({"extra_body": {"state": 1, "questions": {}}}, "input", "unknown parameter"),
        ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options", "not supported"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_named(server: Served, options: dict[str, Any], param: str, says: str) -> None:
    given: dict[str, Any] = {"model": "tiny", "input": INPUT, "questions": [CHOICE]} | options
    with pytest.raises(openai.BadRequestError) as caught:
        client(server).decisions.create(**given)
    assert says in str(caught.value)
    assert caught.value.param == param


def test_messages_and_json_become_text() -> None:
    parts = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": {"b": [1]}}]},
        {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "c"}]},
        {"role": "developer", "content": "d"},
    ]
    body = DecisionBody(model="tiny", input=parts, questions=[])
    assert read_input(body) == [
        {"role": "user", "content": 'a\n{"b":[1]}'},
        {"role": "assistant", "content": "c"},
        {"role": "developer", "content": "d"},
    ]
    assert read_input(SystemOneBody(model="tiny", state=[{"a": 1}], questions={})) == '[{"a":1}]'
    bare = [{"role": "user", "content": "a", "id": None}]  # clients send null for what is not given
    assert read_input(DecisionBody(model="tiny", input=bare, questions=[])) == [{"role": "user", "content": "a"}]


def test_questions_without_a_name_are_numbered() -> None:
    asked = [{"type": "predicate", "instructions": ""}] * MOST_QUESTIONS
    names = list(read_questions(DecisionBody(model="tiny", input="", questions=asked)))
    assert (names[0], names[-1]) == ("q1", "q400")
    with pytest.raises(Problem, match="from 1 to 400 questions may be asked, got 401"):
        read_questions(DecisionBody(model="tiny", input="", questions=[*asked, asked[0]]))


def test_descriptions_reach_the_questions() -> None:
    """A string and a boolean with the same text are two choices."""
    listed: list[dict[str, Any]] = [
        {"type": "choice", "instructions": [{"type": "input_text", "text": "x"}], "choices": [
            {"value": "true", "description": "a word"}, {"value": True},
        ]},
        {"type": "score", "instructions": "y", "levels": [{"label": "low", "description": "bad"}, {"label": "high"}]},
    ]  # fmt: skip
    first, second = read_questions(DecisionBody(model="tiny", input="", questions=listed)).values()
    assert isinstance(first, Choice)
    assert (first.choices, first.descriptions) == (("true", True), ("a word", None))
    assert second == Score("y", ["low: bad", "high"])
    noul = {"type": "noul", "instructions": "Spam?", "criteria": {"true": "an advert", "false": None}}
    (asked,) = read_questions(SystemOneBody(model="tiny", state="", questions={"s": noul})).values()
    assert asked == Predicate("Spam?\nYes: an advert")


def test_system_one(server: Served) -> None:
    with typesafe_sdk.TypeSafeClient(api_key="any", base_url=server.url, timeout=PATIENCE) as asking:
        found = asking.system_one(
            model="tiny",
            state=INPUT,
            questions={"range": typesafe_sdk.Choice(instructions="", criteria=dict.fromkeys(RANGES))},
        )
    answer: Any = found.answers["range"]
    assert answer.choice == "0 to 22"
    assert list(answer.probabilities) == RANGES


def test_both_addresses_take_both_dialects(server: Served) -> None:
    with httpx2.Client(base_url=server.url, timeout=PATIENCE) as http:
        theirs = {"model": "tiny", "state": INPUT, "questions": {
            "level": {"type": "score", "criteria": RANGES},
        }}  # fmt: skip
        ours = {"model": "tiny", "input": INPUT, "questions": [CHOICE]}
        for route in ("/v1/decisions", "/v1/systemone"):
            level = http.post(route, json=theirs).json()["answers"]["level"]
            assert level["legend"] == {str(place): one for place, one in enumerate(RANGES)}
            assert level["score"] == pytest.approx(
                sum(int(place) * one for place, one in level["probabilities"].items())
            )
            assert http.post(route, json=ours).json()["answers"][0]["choice"] == "0 to 22"
            noul = {"type": "noul", "instructions": "A) 0 to 22 B) 23 to 49 C) 50 to 81 D) 82 to 99"}
            low = http.post(route, json=theirs | {"questions": {"low": noul}}).json()["answers"]["low"]
            assert low["type"] == "noul"
            assert low["noul"] > 0.9


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            {"input": "", "questions": [CHOICE, {"type": "choice", "instructions": "", "choices": [
                {"value": "a", "description": "x"}, {"value": "b"}, {"value": "a"},
            ]}]},
            "questions[1]: choices must differ, but 'a' is given twice",
        ),
        (
            '"state": "", "questions": {"kind": {"type": "choice", "criteria": {"a": "x", "b": null, "a": null}}}',
            "questions.kind.criteria: 'a' is given twice",
        ),
        (
            '"state": "", "questions": {"kind": {"type": "noul"}, "kind": {"type": "noul"}}',
            "questions: 'kind' is given twice",
        ),
        (
            {"state": "", "questions": {"kind": {"type": "score", "criteria": ["a", "b", "a"]}}},
            "questions.kind: levels must differ, but 'a' is given twice",
        ),
        (
            '"input": "", "questions": [{"type": "predicate", "instructions": "a", "instructions": "b"}]',
            "questions[0]: 'instructions' is given twice",
        ),
    ],
)  # fmt: skip
def test_nothing_is_given_twice(server: Served, body: Any, says: str) -> None:
    """The bodies are raw, because a client that builds a dict drops the first of two equal names."""
    text = body if isinstance(body, str) else json.dumps(body)[1:-1]
    with httpx2.Client(base_url=server.url, timeout=PATIENCE) as http:
        for route in ("/v1/decisions", "/v1/systemone"):
            found = http.post(route, content='{"model": "tiny", ' + text + "}")
            assert found.status_code == 400
            assert says in found.json()["error"]["message"]
            assert found.json()["error"]["param"] == "questions"


def test_a_state_with_equal_names_and_long_numbers(server: Served) -> None:
    """Only questions are checked: a state may hold any JSON."""
    state = '{"a": 1, "a": ' + "9" * 5000 + "}"
    body = '{"model": "tiny", "state": ' + state + ', "questions": {"low": {"type": "noul"}}}'
    with httpx2.Client(base_url=server.url, timeout=PATIENCE) as http:
        found = http.post("/v1/systemone", content=body)
        nested = '{"a": ' * 900 + "1" + "}" * 900
        deep = http.post("/v1/systemone", content=body.replace('"noul"', f'"noul", "criteria": {nested}'))
    assert "twice" not in found.text
    assert found.status_code < 500
    assert deep.status_code == 400


def test_a_stream_shows_the_probabilities_of_every_step(server: Served) -> None:
    with httpx2.Client(base_url=server.url, timeout=PATIENCE) as http:
        body = {"model": "tiny", "input": INPUT, "questions": [CHOICE], "stream": True, "recipe": "full"}
        lines = [line for line in http.post("/v1/decisions", json=body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    *previews, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [one["step"] for one in previews] == list(range(len(previews)))
    assert [one["value"] for one in previews[0]["questions"]["range"]] == RANGES
    assert len({one["probability"] for one in previews[0]["questions"]["range"]}) > 1  # also before it is filled
    assert last["object"] == "decision"
    assert last["answers"][0]["choice"] == "0 to 22"
    best = max(previews[-1]["questions"]["range"], key=lambda one: one["probability"])
    assert best["value"] == "0 to 22"


def test_a_tuned_file_calibrates_its_questions(tiny: Engine, tmp_path: Path) -> None:
    """Without a recipe in the body, and only for the questions of the file."""
    bounds = [22, 49, 81, 99]
    problems = draw(TASKS["word"], np.random.default_rng(3), 64, test=True)
    right = [next(place for place, most in enumerate(bounds) if int(one.answer) <= most) for one in problems]
    rows = [{"id": at, "prompt": one.prompt, "answer": RANGES[right[at]]} for at, one in enumerate(problems)]
    out = tmp_path / "tuned.json"
    how: Any = {"risk": 0.6, "against": "full steps=2", "pilot": 8, "batch_size": 32, "coverage": 0.99}
    tune("tiny", prompts=rows, questions=[CHOICE], out=out, **how)
    unsure = problems[0].prompt
    alone: Any = tiny.decide(unsure, {"range": Choice("", RANGES)}, recipe=out)
    assert max(abs(alone.answer.calibrated[one] - alone.answer.probabilities[one]) for one in RANGES) > 1e-3
    body = {"model": "tiny", "input": unsure, "questions": [CHOICE]}
    theirs = {"model": "tiny", "state": unsure, "questions": {
        "range": {"type": "choice", "criteria": dict.fromkeys(RANGES)},
    }}  # fmt: skip
    with serve(tiny, recipes=["swift", str(out)]) as one, httpx2.Client(base_url=one.url, timeout=PATIENCE) as http:
        settings = http.post("/v1/decisions", json=body | {"recipe": "tuned steps=5"})
        made, named, full, once, other, system = (
            http.post("/v1/decisions", json=each).json()
            for each in (
                body,
                body | {"recipe": "tuned"},
                body | {"recipe": "full"},
                body | {"steps": 1},
                body | {"questions": [CHOICE | {"name": "another"}]},
                theirs,
            )
        )
    assert settings.status_code == 400
    assert "a certified recipe takes no settings here" in settings.text
    for each in (made, named):
        found = {label["value"]: label["probability"] for label in each["answers"][0]["probabilities"]}
        assert found == pytest.approx(dict(alone.answer.calibrated), abs=1e-6)
        assert each["answers"][0]["confidence"] == pytest.approx((4 * max(found.values()) - 1) / 3)
        assert each["foretell"]["answers"]["range"]["conformal"] == list(alone.answer.conformal)
    assert system["answers"]["range"]["probabilities"] == pytest.approx(dict(alone.answer.calibrated), abs=1e-6)
    for each in (full, once):
        assert each["foretell"]["answers"]["range"]["conformal"] is None
    assert other["foretell"]["answers"]["another"]["conformal"] is None
    assert other["foretell"]["notes"] == []


def test_decisions_and_texts_share_the_worker(server: Served) -> None:
    count = server.service.metrics.requests.labels("/v1/decisions", "ok")._value.get
    before = count()
    decide(server, CHOICE)
    ask(server)
    wait_for(lambda: count() > before)
    server.wait_until_idle()


def test_a_decision_is_counted_and_logged(tiny: Engine, caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "tiny", "input": INPUT, "questions": [CHOICE], "recipe": "swift stop=never"}
    with caplog.at_level(logging.INFO, "foretell.serve"), TestClient(app(tiny)) as client:
        done = client.post("/v1/decisions", json=body).json()
        lines = client.get("/metrics").text.splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}
    work, usage = done["foretell"], done["usage"]
    assert values["foretell_steps_total"] == work["steps"]
    assert values["foretell_forwards_total"] == work["forwards"]
    assert values["foretell_columns_computed_total"] >= values["foretell_columns_needed_total"] > 0
    assert (values["foretell_prompt_tokens_total"], values["foretell_tokens_total"]) == (usage["input_tokens"], 1)
    assert f"ok, 1 tokens, {work['forwards']} passes, " in caplog.text


def test_a_client_that_leaves_takes_its_decision_with_it(gated: tuple[Served, Gated]) -> None:
    server, model = gated
    body = {"model": "tiny", "input": INPUT, "questions": [CHOICE], "recipe": "full"}
    connection = send_raw(server, body, "/v1/decisions")
    wait_for(lambda: len(model.passes) == 1)
    connection.close()
    left = server.service.metrics.requests.labels("/v1/decisions", "left")
    wait_for(lambda: left._value.get() == 1)
    model.gate.set()
    server.wait_until_idle()
    assert len(model.passes) == 1

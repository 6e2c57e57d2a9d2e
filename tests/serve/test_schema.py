"""Chat completions that follow a closed JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

import foretell
from foretell.serve.bodies import ChatBody
from foretell.storage import names_of
from tests.serve.conftest import Served, serve
from tests.serve.test_openai import client

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "urgent": {"type": "boolean"},
        "team": {"enum": ["sales", "support"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["urgent", "team", "age"],
    "additionalProperties": False,
}
MESSAGES: list[Any] = [{"role": "user", "content": "The server is down."}]


@pytest.fixture(scope="module")
def literate_server(literate: Path) -> Iterator[Served]:
    with serve(foretell.load(literate, packed=False)) as server:
        yield server


def ask(server: Served, schema: Any = SCHEMA, **options: Any) -> Any:
    given: Any = {"type": "json_schema", "json_schema": {"name": "ticket", "schema": schema, "strict": True}}
    return client(server).chat.completions.create(
        **{"model": server.engine.name, "messages": MESSAGES, "response_format": given} | options
    )


def test_the_text_follows_the_schema(literate_server: Served) -> None:
    done = ask(literate_server)
    value = json.loads(done.choices[0].message.content)
    jsonschema.validate(value, SCHEMA)
    assert done.choices[0].finish_reason == "stop"
    assert done.model_extra["foretell"]["forwards"] > 1
    assert json.loads(ask(literate_server, n=1).choices[0].message.content) == value
    assert ask(literate_server, extra_body={"steps": 1}).model_extra["foretell"]["forwards"] == 1
    chunks = list(ask(literate_server, stream=True, stream_options={"include_usage": True}))
    text = "".join(one.choices[0].delta.content or "" for one in chunks[:-1])
    assert json.loads(text) == value
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.prompt_tokens == done.usage.prompt_tokens


def test_pydantic_models(literate_server: Served) -> None:
    class Ticket(pydantic.BaseModel):
        urgent: bool
        team: Literal["sales", "support"]

    done = client(literate_server).chat.completions.parse(
        model=literate_server.engine.name, messages=MESSAGES, response_format=Ticket
    )
    assert isinstance(done.choices[0].message.parsed, Ticket)


def test_no_parameter_of_a_text_is_ignored(literate_server: Served) -> None:
    values: dict[str, Any] = {
        "n": 2, "temperature": 1.0, "top_p": 0.5, "top_k": 3, "stop": "a", "logprobs": True, "top_logprobs": 1,
        "drafts": True, "diffusing": True, "trace": True, "layout": "a", "suffix": "a", "answer_suffix": "a",
        "answer_length": 1, "block_length": 1, "stop_rule": "stable",
    }  # fmt: skip
    shared = {"model", "messages", "response_format", "stream", "stream_options", "recipe", "steps", "seed"}
    longest = {"max_tokens", "max_completion_tokens"}  # have no effect, which a note says
    assert set(values) == set(names_of(ChatBody)) - shared - longest
    for name, value in values.items():
        with pytest.raises(openai.BadRequestError, match="not supported with a JSON schema") as caught:
            ask(literate_server, extra_body={name: value})
        assert caught.value.param == name


def test_a_limit_that_has_no_effect_is_noted(literate_server: Served) -> None:
    limited = ask(literate_server, max_tokens=1)
    assert json.loads(limited.choices[0].message.content) == json.loads(ask(literate_server).choices[0].message.content)
    assert any(note.startswith("max_tokens has no effect") for note in limited.model_extra["foretell"]["notes"])


@pytest.mark.parametrize(
    ("schema", "options", "param", "says"),
    [
        ({"type": "object"}, {}, "response_format", "propert"),
        ({**SCHEMA, "additionalProperties": True}, {}, "response_format", "additionalProperties"),
        (SCHEMA, {"n": 2}, "n", "not supported with a JSON schema"),
        (SCHEMA, {"temperature": 1.0}, "temperature", "not supported with a JSON schema"),
        (SCHEMA, {"extra_body": {"stop_rule": "stable"}}, "stop_rule", "not supported with a JSON schema"),
        (SCHEMA, {"top_logprobs": 1}, "top_logprobs", "not supported with a JSON schema"),
        (SCHEMA, {"response_format": {"type": "json_object"}}, "response_format", "give a closed JSON schema"),
        (SCHEMA, {"extra_body": {"recipe": "none"}}, "recipe", "unknown recipe"),
        (SCHEMA, {"extra_body": {"recipe": "swift a.b=1"}}, "recipe", "a.b"),
    ],
)
def test_what_cannot_be_served_is_named(
    literate_server: Served, schema: Any, options: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(literate_server, schema, **options)
    assert says in str(caught.value)
    assert caught.value.param == param

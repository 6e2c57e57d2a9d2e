"""litellm, which has an openai client of its own version, uses the server unchanged."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any

import pytest

from tests.serve.conftest import ANSWER, QUESTION, Served, serve

pytestmark = [
    pytest.mark.litellm,
    pytest.mark.timeout(600),  # importing it takes a busy machine a minute
    pytest.mark.skipif(find_spec("litellm") is None, reason="litellm is not installed; run make test-litellm"),
]


def ask(server: Served, key: str = "none", **options: Any) -> Any:
    import litellm

    litellm.suppress_debug_info = True
    messages = options.pop("messages", [{"role": "user", "content": QUESTION}])
    where = {"model": "openai/tiny", "api_base": f"{server.url}/v1", "api_key": key, "num_retries": 0}
    return litellm.completion(messages=messages, **where, **options)


def test_a_completion(server: Served) -> None:
    done = ask(server)
    assert done.choices[0].message.content == ANSWER
    assert done.choices[0].finish_reason == "stop"
    assert done.usage.prompt_tokens == 24
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


def test_a_cap(server: Served) -> None:
    done = ask(server, max_tokens=6)
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 6


def test_a_stream(server: Served) -> None:
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == ANSWER
    assert [one.choices[0].finish_reason for one in chunks if one.choices and one.choices[0].finish_reason] == ["stop"]


def test_an_async_stream(server: Served) -> None:
    import litellm

    async def read() -> str:
        where = {"model": "openai/tiny", "api_base": f"{server.url}/v1", "api_key": "none"}
        messages = [{"role": "user", "content": QUESTION}]
        chunks: Any = await litellm.acompletion(messages=messages, stream=True, **where)
        return "".join([one.choices[0].delta.content or "" async for one in chunks])

    assert asyncio.run(read()) == ANSWER


@pytest.mark.parametrize("drafts", [{"drafts": True}, {"drafts": "positions"}, {"diffusing": True}])
def test_drafts_are_ignored(server: Served, drafts: dict[str, Any]) -> None:
    chunks = list(ask(server, stream=True, extra_body=drafts | {"recipe": "full", "layout": "choice"}))
    plain = list(ask(server, stream=True, extra_body={"recipe": "full", "layout": "choice"}))
    texts = ["".join(one.choices[0].delta.content or "" for one in each) for each in (chunks, plain)]
    assert texts[0] == texts[1] != ""


def test_our_own_parameters(server: Served) -> None:
    done = ask(server, extra_body={"recipe": "full", "layout": "word"})
    assert done.choices[0].message.content == ANSWER


def test_a_refused_parameter_names_itself(server: Served) -> None:
    import litellm

    with pytest.raises(litellm.BadRequestError, match="frequency_penalty"):
        ask(server, frequency_penalty=0.5)
    with pytest.raises(litellm.BadRequestError, match="unknown recipe"):
        ask(server, extra_body={"recipe": "other"})
    with pytest.raises(litellm.BadRequestError, match="Prompts that work"):
        ask(server, messages=[{"role": "user", "content": "Hello, world"}])


def test_a_long_prompt_is_its_own_error(server: Served) -> None:
    import litellm

    with pytest.raises(litellm.ContextWindowExceededError, match="302 tokens"):
        ask(server, messages=[{"role": "user", "content": "apples " * 300}])


def test_wrong_keys_and_models(server: Served) -> None:
    import litellm

    from foretell.serve import Access

    with serve(server.engine, access=Access("secret")) as guarded:
        with pytest.raises(litellm.AuthenticationError):
            ask(guarded, key="wrong")
        assert ask(guarded, key="secret").choices[0].message.content == ANSWER
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(
            model="openai/other", api_base=f"{server.url}/v1", api_key="none", num_retries=0,
            messages=[{"role": "user", "content": QUESTION}],
        )  # fmt: skip

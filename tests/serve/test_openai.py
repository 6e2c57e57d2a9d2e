"""The real openai client against a real server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from foretell.engine.request import Layout
from foretell.serve import Limits
from foretell.serve.examples import find_examples
from foretell.tasks import TASKS, draw
from tests.serve.conftest import ANSWER, PATIENCE, QUESTION, Gated, Served, serve, wait_for

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


def client(server: Served, **options: Any) -> openai.OpenAI:
    made = openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", **{"timeout": PATIENCE, "max_retries": 0} | options
    )
    server.clients.append(made)
    return made


def ask(server: Served, **options: Any) -> Any:
    return client(server).chat.completions.create(model="tiny", messages=MESSAGES, **options)


def test_a_chat_completion(server: Served) -> None:
    done = ask(server)
    (choice,) = done.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert done.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 24,
        "completion_tokens": 23,
        "total_tokens": 47,
    }
    assert done.object == "chat.completion"
    assert done._request_id.startswith("req-")
    work = done.model_extra["foretell"]
    alone = server.engine.generate(QUESTION, recipe="swift")
    assert (work["steps"], work["forwards"], work["exit"]) == (alone.steps, alone.forwards, alone.exit)
    assert (work["answer"], work["finish"], work["saved"]) == ("7", "settled", alone.saved)
    assert work["gap"] == pytest.approx(alone.value, abs=1e-3)
    assert work["measure"] == "min gap"


def test_the_cap_is_not_the_window(server: Served) -> None:
    texts = {ask(server, max_tokens=cap).choices[0].message.content for cap in (64, 100, 128, 1024, openai.omit)}
    assert texts == {ANSWER}
    newer = ask(server, max_completion_tokens=100)
    assert newer.choices[0].message.content == ANSWER
    assert ask(server, max_tokens=6, max_completion_tokens=100).choices[0].message.content == ANSWER


def test_longer_text_is_cut(server: Served) -> None:
    done = ask(server, max_tokens=6)
    assert done.choices[0].finish_reason == "length"
    assert ANSWER.startswith(done.choices[0].message.content.rstrip())
    assert done.usage.completion_tokens == 6
    chunks = list(ask(server, max_tokens=6, stream=True))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == done.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_text_that_ends_exactly_at_the_cap_is_whole(server: Served) -> None:
    """An answer of 23 tokens, after which the window has its end."""
    for cap, reason in ((23, "stop"), (22, "length")):
        done = ask(server, max_tokens=cap)
        assert (done.usage.completion_tokens, done.choices[0].finish_reason) == (cap, reason)


def test_a_stream_of_ordinary_deltas(server: Served) -> None:
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [one.choices[0].delta.content for one in chunks[:-1] if one.choices[0].delta.content]
    assert "".join(texts) == ANSWER
    assert len(texts) > 1
    assert {one.choices[0].delta.role for one in chunks[1:-1]} == {None}
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 47)
    assert len({one.id for one in chunks}) == 1
    assert all(one.choices for one in ask(server, stream=True, stream_options={"include_usage": False}))


def test_drafts_disturb_no_reader_of_text(server: Served) -> None:
    recipe = {"drafts": True, "recipe": "prophet stop.reduce=min"}
    chunks = list(ask(server, stream=True, extra_body=recipe))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == ANSWER
    drafts = [one.model_extra["draft"] for one in chunks if "draft" in (one.model_extra or {})]
    alone = list(server.engine.stream(QUESTION, recipe="prophet stop.reduce=min"))
    assert [one["step"] for one in drafts] == [frame.step for frame in alone]
    assert [one["filled"] for one in drafts] == [list(frame.filled) for frame in alone]
    assert [one["fresh"] for one in drafts] == [list(frame.fresh) for frame in alone]
    assert drafts[-1]["settled"]
    assert drafts[-1]["gap"] >= drafts[-1]["threshold"]
    assert all(one["gap"] < one["threshold"] for one in drafts[:-1])
    assert "confidence" not in drafts[0]
    assert [one["text"] for one in drafts] == [frame.text for frame in alone]
    assert chunks[-1].model_extra["foretell"]["text"] == ANSWER


def test_mercurys_name_of_drafts(server: Served) -> None:
    chunks = list(ask(server, stream=True, extra_body={"diffusing": True}))
    assert any("draft" in (one.model_extra or {}) for one in chunks)


def test_drafts_with_positions(server: Served) -> None:
    chunks = list(ask(server, stream=True, extra_body={"drafts": "positions"}))
    drafts = [one.model_extra["draft"] for one in chunks if "draft" in (one.model_extra or {})]
    last = drafts[-1]
    assert len(last["tokens"]) == len(last["confidence"]) == len(last["ends"]) == 64
    assert "".join(last["tokens"]).split() == "03 * 04 = 12. 12 - 05 = 07. The answer is 07".replace(".", " .").split()
    assert all(0 <= one <= 1.0001 for draft in drafts for one in draft["confidence"])
    assert max(drafts[0]["confidence"]) > 0.9


def test_several_choices_have_different_seeds(server: Served) -> None:
    def sample(seed: int, n: int) -> Any:
        messages: list[Any] = [{"role": "user", "content": "29,57,62,34"}]
        return client(server).chat.completions.create(
            model="tiny", messages=messages, n=n, temperature=2, seed=seed, extra_body={"layout": "countdown"}
        )

    done = sample(5, 3)
    texts = [one.message.content for one in done.choices]
    assert [one.index for one in done.choices] == [0, 1, 2]
    assert texts == [sample(5 + at, 1).choices[0].message.content for at in range(3)]
    assert len(set(texts)) > 1
    assert done.usage.prompt_tokens == sample(5, 1).usage.prompt_tokens
    assert len(done.model_extra["foretell"]["choices"]) == 3


def test_a_stream_of_several_choices(server: Served) -> None:
    texts = ["", ""]
    for chunk in ask(server, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [ANSWER, ANSWER]


def test_temperature_zero_is_greedy(server: Served) -> None:
    done = ask(server, temperature=0, top_p=0.5)
    assert done.choices[0].message.content == ANSWER
    assert "sample" not in done.model_extra["foretell"]["recipe"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text(server: Served, stream: bool) -> None:
    if stream:
        chunks = list(ask(server, stop=["nothing", "12 -"], stream=True))
        text = "".join(one.choices[0].delta.content or "" for one in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        done = ask(server, stop="12 -")
        text, reason = done.choices[0].message.content, done.choices[0].finish_reason
    assert (text, reason) == (ANSWER.partition("12 -")[0], "stop")


def test_a_stop_string_before_the_cap_ends_the_text(server: Served) -> None:
    done = ask(server, stop="12 -", max_tokens=15)
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == (ANSWER.partition("12 -")[0], "stop")
    assert done.usage.completion_tokens == len(server.engine.codec.encode("3 * 4 = 12 . "))
    after = ask(server, stop="The", max_tokens=6)
    assert (after.choices[0].finish_reason, after.usage.completion_tokens) == ("length", 6)


def test_log_probabilities_are_those_of_the_step_that_filled_a_token(server: Served) -> None:
    done = ask(server, logprobs=True, top_logprobs=2)
    entries = done.choices[0].logprobs.content
    assert len(entries) == done.usage.completion_tokens
    trace = server.engine.generate(QUESTION, recipe="swift", trace=True).trace
    assert trace is not None
    ends = server.engine.codec.end_ids
    places = [at for at, token in enumerate(trace.tokens[-1].tolist()) if token not in ends]
    for at, entry in zip(places, entries, strict=True):
        step = int(trace.filled_at[at])
        if step < 0:
            assert (entry.logprob, entry.top_logprobs) == (0.0, [])  # pinned
        else:
            assert np.exp(entry.logprob) == pytest.approx(float(trace.confidence[step, at]), rel=1e-4)
            assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
            assert entry.top_logprobs[0].token == entry.token
    assert bytes(entries[2].bytes).decode().strip() == "*"
    plain = ask(server, logprobs=True).choices[0].logprobs.content
    assert [(one.logprob, one.top_logprobs) for one in plain] == [(one.logprob, []) for one in entries]


def test_text_completions_are_raw(server: Served) -> None:
    text = f"<|startoftext|>{QUESTION}<|eot_id|>"
    ids = server.engine.codec.encode(text)
    done = client(server).completions.create(model="tiny", prompt=[text, text], logprobs=1)
    assert [one.text for one in done.choices] == [ANSWER, ANSWER]
    assert done.usage is not None
    assert done.usage.prompt_tokens == 2 * len(ids)
    scores = done.choices[0].logprobs
    assert scores is not None
    assert scores.tokens is not None
    assert scores.text_offset is not None
    assert "".join(scores.tokens)[scores.text_offset[2] :].startswith(scores.tokens[2])
    by_ids = client(server).completions.create(model="tiny", prompt=ids)
    assert by_ids.choices[0].text == ANSWER
    bare = client(server).completions.create(model="tiny", prompt=QUESTION)
    assert bare.usage is not None
    assert bare.usage.prompt_tokens < len(ids)  # nothing is added


def test_a_suffix_of_a_text_completion_stays_after_the_window(server: Served) -> None:
    head, tail = "<|startoftext|>", " apples are left?"
    done = client(server).completions.create(
        model="tiny", prompt=head, suffix=tail, extra_body={"recipe": "full", "layout": "choice"}
    )
    codec, engine = server.engine.codec, server.engine
    tokens = codec.encode(tail)
    layout = Layout(32 + len(tokens), tuple((32 + at, token) for at, token in enumerate(tokens)))
    template = replace(engine.template(recipe="full", layout="choice", chat=False), layout=layout)
    ((_, alone),) = engine.generate_iter([(head, template)])
    middle = alone.tokens[:32]
    ends = [at for at, token in enumerate(middle) if token in codec.end_ids]
    assert done.choices[0].text == codec.decode(middle[: ends[0]] if ends else middle)
    assert done.choices[0].finish_reason == "stop"


def test_models(server: Served) -> None:
    listed = client(server).models.list().data
    assert [one.id for one in listed] == ["tiny"]
    assert client(server).models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client(server).models.retrieve("owner/name")


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "not supported"),
        ({"top_logprobs": 2}, "top_logprobs", "set logprobs to true"),
        ({"web_search_options": {}}, "web_search_options", "does not search"),
        ({"extra_body": {"best_of": 2}}, "best_of", "not supported"),
        ({"store": True}, "store", "nothing is stored"),
        ({"stop": ["a"] * 17}, "stop", "<= 16"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options", "not supported"),
        ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options", "include_usge"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"temperature": 3}, "temperature", "<= 2"),
        ({"n": 17}, "n", "at most 16"),
        ({"extra_body": {"tempreature": 1}}, "tempreature", "did you mean 'temperature'"),
        ({"extra_body": {"recipe": "swiftt"}}, "recipe", "unknown recipe"),
        ({"extra_body": {"recipe": "/etc/passwd.json"}}, "recipe", "unknown recipe"),
        ({"extra_body": {"recipe": "swift stop=judge('x')"}}, "recipe", "numbers"),
        ({"extra_body": {"recipe": "swift transfer.value=2"}}, "recipe", "from 0 to 1"),
        ({"extra_body": {"recipe": "swift nothing=2"}}, "recipe", "nothing"),
        ({"extra_body": {"recipe": "swift transfer.value=0.9)"}}, "recipe", "numbers"),
        ({"extra_body": {"recipe": f"swift{' steps=8' * 9}"}}, "recipe", "at most 8"),
        ({"extra_body": {"stop_rule": "prophet-max"}}, "stop_rule", "did you mean 'prophet-min'"),
        ({"extra_body": {"layout": "letter"}}, "layout", "unknown layout"),
        ({"extra_body": {"stop_rule": "judge"}}, "stop_rule", "unknown stop_rule"),
        ({"extra_body": {"drafts": True}}, "drafts", "set stream to true"),
        ({"extra_body": {"answer_length": 100}}, "answer_length", "do not fit"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "set stream to true"),
    ],
)
def test_what_is_refused_is_named(server: Served, options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        ask(server, **options)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_neutral_values_are_accepted(server: Served) -> None:
    done = ask(
        server, tools=[], tool_choice="none", logit_bias={}, frequency_penalty=0, presence_penalty=0,
        response_format={"type": "text"}, user="me", metadata={"a": "b"}, store=False, n=1, top_p=1,
        service_tier="auto", modalities=["text"], top_logprobs=0, extra_body={"top_k": 0, "best_of": 1},
    )  # fmt: skip
    assert done.choices[0].message.content == ANSWER
    assert "sample" not in done.model_extra["foretell"]["recipe"]
    assert len(ask(server, n=16, tool_choice="auto").choices) == 16
    notes = done.model_extra["foretell"]["notes"]
    assert [note for note in notes if "no effect" in note] == [
        "metadata has no effect on this server",
        "user has no effect on this server",
    ]


def test_our_own_parameters(server: Served) -> None:
    work = ask(server, extra_body={"recipe": "full"}).model_extra["foretell"]
    assert (work["steps"], work["exit"], work["gap"]) == (61, None, None)
    loose = ask(server, extra_body={"recipe": "swift transfer.value=0.5 stop.tau.high=100"}).model_extra["foretell"]
    assert "threshold(value=0.5)" in loose["recipe"]
    assert "high=100" in loose["recipe"]
    longer = ask(server, extra_body={"recipe": "prophet stop.reduce=min block_length=16"}).model_extra["foretell"]
    assert "reduce=min" in longer["recipe"]
    ruled = ask(server, extra_body={"recipe": "full", "stop_rule": "prophet-min"}).model_extra["foretell"]
    assert ruled["steps"] == server.engine.generate(QUESTION, recipe="prophet stop.reduce=min").steps
    timed = ask(server, extra_body={"recipe": "swift stop=never", "stop_rule": "prophet"}).model_extra["foretell"]
    assert "clock=tokens" in timed["recipe"]
    short = ask(server, extra_body={"recipe": "full", "steps": 8}).model_extra["foretell"]
    assert (short["steps"], short["budget"]) == (8, 8)
    assert "block_length" not in ask(server, extra_body={"block_length": 32}).model_extra["foretell"]["recipe"]
    assert "block_length=16" in ask(server, extra_body={"block_length": 16}).model_extra["foretell"]["recipe"]
    pinned = ask(server, extra_body={"suffix": "The answer is", "answer_length": 1})
    assert pinned.choices[0].message.content.startswith("3 * 4")
    assert len(pinned.model_extra["foretell"]["answer"].split()) == 1
    alone = server.engine.generate(QUESTION, recipe="swift", suffix="is", answer_length=2)
    assert alone.text != ANSWER
    for name in ("suffix", "answer_suffix"):
        assert ask(server, extra_body={name: "is", "answer_length": 2}).choices[0].message.content == alone.text


def test_layouts_are_chosen_by_name(server: Served) -> None:
    (problem,) = draw(TASKS["sudoku"], np.random.default_rng(1), 1, test=True)
    messages: list[Any] = [{"role": "user", "content": problem.prompt}]
    done = client(server).chat.completions.create(model="tiny", messages=messages, extra_body={"layout": "sudoku"})
    alone = server.engine.generate(problem.prompt, recipe="swift", layout="sudoku")
    assert done.choices[0].message.content == alone.text


def test_messages_in_parts_and_other_roles(server: Served) -> None:
    parts: list[Any] = [{"role": "user", "name": "me", "content": [{"type": "text", "text": QUESTION}]}]
    done = client(server).chat.completions.create(model="tiny", messages=parts)
    assert done.choices[0].message.content == ANSWER
    developer: list[Any] = [{"role": "developer", "content": QUESTION}]
    assert client(server).chat.completions.create(model="tiny", messages=developer).choices[0].message.content == ANSWER
    image: list[Any] = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    with pytest.raises(openai.BadRequestError, match="image_url") as caught:
        client(server).chat.completions.create(model="tiny", messages=image)
    assert caught.value.param == "messages"


def test_a_prompt_that_the_model_cannot_read_gets_working_examples(server: Served) -> None:
    strange: list[Any] = [{"role": "user", "content": "Write a poem."}]
    with pytest.raises(openai.BadRequestError) as caught:
        client(server).chat.completions.create(model="tiny", messages=strange)
    assert caught.value.code == "unknown_words"
    for task in TASKS:
        assert f'{{"layout": "{task}"}}' in str(caught.value)


def test_every_example_of_the_message_works(server: Served) -> None:
    for one in find_examples(server.engine):
        messages: list[Any] = [{"role": "user", "content": one.prompt}]
        extra = {"layout": one.layout}
        done = client(server).chat.completions.create(model="tiny", messages=messages, extra_body=extra)
        assert done.choices[0].message.content


def test_a_prompt_that_is_too_long(server: Served) -> None:
    long: list[Any] = [{"role": "user", "content": f"{QUESTION} " * 12}]
    with pytest.raises(openai.BadRequestError) as caught:
        client(server).chat.completions.create(model="tiny", messages=long)
    assert caught.value.code == "context_length_exceeded"
    for more, status in (("", 200), (" apples", 400)):  # 192 tokens and a window of 64 are the whole context
        said = [{"role": "user", "content": "apples " * 189 + f"apples{more}"}]
        body = {"model": "tiny", "messages": said, "recipe": "swift", "steps": 1}
        assert httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE).status_code == status


def test_an_async_client_and_concurrent_requests(server: Served) -> None:
    """Whatever the load, an answer is the one of a request alone."""
    drawn = draw(TASKS["choice"], np.random.default_rng(7), 8, test=True)
    recipes = ["swift", "full", "prophet stop.reduce=min", "swift stop=never"]
    jobs = [(problem.prompt, recipes[at % len(recipes)]) for at, problem in enumerate(drawn)]

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=PATIENCE * 10) as asking:

            async def one(prompt: str, recipe: str, stream: bool) -> str:
                messages: Any = [{"role": "user", "content": prompt}]
                extra: Any = {"recipe": recipe, "layout": "choice", "drafts": stream}
                if not stream:
                    done = await asking.chat.completions.create(model="tiny", messages=messages, extra_body=extra)
                    return done.choices[0].message.content or ""
                parts = await asking.chat.completions.create(
                    model="tiny", messages=messages, extra_body=extra, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in parts])

            return await asyncio.gather(*(one(*job, at % 3 == 0) for at, job in enumerate(jobs)))

    texts = asyncio.run(ask_all())
    alone = [server.engine.generate(prompt, recipe=recipe, layout="choice").text for prompt, recipe in jobs]
    assert texts == alone


def test_a_busy_server_says_when_to_come_back_and_clients_retry(gated: tuple[Served, Gated]) -> None:
    server, model = gated
    service = server.service
    service.worker.max_waiting, service.worker.max_batch = 1, 1
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=0.3, max_retries=0) as impatient:
        for _ in range(2):
            with pytest.raises(openai.APITimeoutError):
                impatient.chat.completions.create(model="tiny", messages=MESSAGES)
    with pytest.raises(openai.RateLimitError) as caught:
        ask(server)
    assert (caught.value.response.headers["retry-after"], caught.value.type) == ("1", "rate_limit_error")
    model.gate.set()
    assert client(server, max_retries=5).chat.completions.create(model="tiny", messages=MESSAGES).choices


def test_more_answers_than_there_are_places_are_never_given(tiny: Any) -> None:
    with serve(tiny, limits=Limits(max_batch=1, max_waiting=1)) as server:
        with pytest.raises(openai.BadRequestError, match="at most 2") as caught:
            ask(server, n=3)
        assert caught.value.param == "n"
        assert len(ask(server, n=2).choices) == 2


def test_different_recipes_are_limited(gated: tuple[Served, Gated]) -> None:
    server, model = gated
    server.service.worker.max_groups = 1
    chunks = ask(server, stream=True)
    wait_for(lambda: server.service.worker.load == 1)
    with pytest.raises(openai.RateLimitError, match="different recipes"):
        ask(server, extra_body={"recipe": "full"}, stream=True)
    assert server.service.metrics.requests.labels("/v1/chat/completions", "refused")._value.get() == 1
    model.gate.set()
    assert list(chunks)[-1].choices[0].finish_reason == "stop"
    server.wait_until_idle()
    assert ask(server, extra_body={"recipe": "full"}).choices


def test_a_request_that_takes_too_long(tiny: Any) -> None:
    with serve(tiny, limits=Limits(timeout=0.001)) as server:
        with pytest.raises(openai.APIStatusError) as caught:
            ask(server, extra_body={"recipe": "full"})
        assert (caught.value.status_code, caught.value.type) == (504, "timeout_error")
        assert caught.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.APIError, match=r"more than .* seconds"):
            list(ask(server, stream=True, extra_body={"recipe": "full"}))
        server.wait_until_idle()
        failed = server.service.metrics.requests.labels("/v1/chat/completions", "failed")
        wait_for(lambda: failed._value.get() == 2)


def test_the_body_of_a_chunk_is_what_strict_clients_expect(server: Served) -> None:
    """Every event is an ordinary chunk, and the stream ends with [DONE]."""
    with client(server).chat.completions.with_streaming_response.create(
        model="tiny",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"drafts": True},
    ) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert (raw.headers["cache-control"], raw.headers["x-accel-buffering"]) == ("no-cache", "no")
        lines = [line for line in raw.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    *chunks, last = (json.loads(line.removeprefix("data: ")) for line in lines[:-1])
    shared = {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert len(chunk["choices"]) == 1
        assert chunk["usage"] is None
        assert shared <= set(chunk) <= shared | {"draft", "foretell"}
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 47)

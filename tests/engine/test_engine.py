"""The public face: load, generate, stream, and clear answers to bad requests."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, Unpack, get_type_hints, is_typeddict

import numpy as np
import pytest
import torch
from torch import Tensor

import foretell
from foretell.engine.completion import Completion, Failure, cut_text, scheduled_steps
from foretell.engine.hints import HINTS
from foretell.engine.masked_text import MaskedText
from foretell.engine.options import ALIASES, NO_REGION, NO_TEXT, GenerateOptions, Options, RequestTemplate
from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import (
    ContextLengthError,
    LayoutError,
    ModelError,
    RecipeError,
    RequestError,
    StorageError,
    VocabularyError,
)
from foretell.evaluation.run import Evaluation, evaluate
from foretell.loop.decode import decode
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Beliefs, Denoiser, Inputs, Readout, Verdict
from foretell.loop.view import StateView
from foretell.models.llada import save_llada
from foretell.models.toy import Toy
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.policies.transfer.quota import Quota

PROMPT = "Tom has 3 boxes with 4 apples each."
SMALL: dict[str, Any] = {"max_new_tokens": 16, "block_length": 8}
LOST = "judge(path='nowhere.json',sha256='0123456789ab')"


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> foretell.Engine:
    return foretell.load(checkpoint)


def test_five_lines(checkpoint: Path) -> None:
    engine = foretell.load(checkpoint)
    out = engine.generate(PROMPT, recipe="prophet", suffix="The answer is", answer_length=2, trace=True, **SMALL)
    assert isinstance(out.text, str)
    assert 0 < out.steps <= out.budget == 16
    assert out.finish in {"settled", "complete"}
    assert out.trace is not None
    assert len(out.trace) == out.steps
    assert out.tokens[11:14] == tuple(engine.codec.encode("The answer is"))
    assert out.answer == engine.codec.decode(out.tokens[14:])


def test_many_prompts_equal_one_by_one(engine: foretell.Engine) -> None:
    prompts: list[Any] = [PROMPT, "Tom has 3 apples.", [{"role": "user", "content": "He eats 5."}]]
    together = engine.generate(prompts, batch_size=2, recipe="prophet", answer_length=3, **SMALL)
    for prompt, one in zip(prompts, together, strict=True):
        alone = engine.generate(prompt, recipe="prophet", answer_length=3, **SMALL)
        assert replace(alone, seconds=0.0) == replace(one, seconds=0.0)
    assert engine.generate([], **SMALL) == []


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("Tom has 3 Zanzibar.", SMALL, VocabularyError, "Zanzibar"),
    (PROMPT, {"recipe": "profet"}, RecipeError, "did you mean 'prophet'"),
    (PROMPT, {"layout": "sudoku"}, RequestError, "has no layouts, so 'sudoku' is unknown"),
    (PROMPT, {"max_new_tokens": 250}, ContextLengthError, "exceed the context of 256"),
    (PROMPT, {**SMALL, "steps": 0}, RecipeError, "steps must be at least 1, got 0"),
    (PROMPT, {"recipe": 5}, RequestError, "recipe must be a recipe, its text, or the file of a certified one, got 5"),
    (PROMPT, {"layout": 3}, RequestError, "layout must be a text, got 3"),
    (PROMPT, {"pins": [1]}, RequestError, "pins must be a mapping from window offsets to token ids or texts, got [1]"),
    (PROMPT, {**SMALL, "answer_start": "1"}, RequestError, "answer_start must be a whole number, got '1'"),
    (PROMPT, {"recipe": "prophet stop=judge"}, RecipeError, "stop needs judge's path: judge(path=...)"),
    (PROMPT, {"recipe": f"full stop={LOST}"}, StorageError, "cannot read the judge nowhere.json: No such file"),
    (PROMPT, {"stop": f"any(prophet, {LOST})"}, StorageError, "cannot read the judge nowhere.json: No such file"),
    (PROMPT, {"recipe": "full region=pattern"}, RecipeError, "region needs pattern's regex: pattern(regex=...)"),
    (3, SMALL, RequestError, "a string, a list of messages or a list of token ids, got int"),
    ([5], {**SMALL, "chat": True}, RequestError, "chat=True formats text with the chat template; token ids are used"),
    (
        [{"role": "user", "content": "Tom"}],
        {**SMALL, "chat": False},
        RequestError,
        "chat messages need the chat template",
    ),
    ([{"role": "usr", "content": "Tom"}], SMALL, RequestError, "did you mean 'user'"),
]


def test_what_cannot_be_decoded_fails_alone(engine: foretell.Engine) -> None:
    good: list[tuple[Any, dict[str, Any]]] = [(PROMPT, SMALL), ("Tom has 3 apples.", {**SMALL, "steps": 5})]
    for prompt, options, error, message in BAD:
        with pytest.raises(error) as refused:
            engine.request(prompt, engine.template(**options))
        assert type(refused.value) is error
        assert message in str(refused.value)
    bad = [one for one in BAD if one[1] is SMALL]
    asked = [good[0], *((prompt, options) for prompt, options, _, _ in bad), good[1]]
    pairs = [(prompt, engine.template(**options)) for prompt, options in asked]
    found = dict(engine.generate_iter(pairs, errors="return"))
    assert sorted(found) == list(range(len(pairs)))
    assert len(bad) > 2
    for index, (_, _, error, message) in enumerate(bad, 1):
        failure = found[index]
        assert isinstance(failure, foretell.Failure)
        assert type(failure.error) is error
        assert message in str(failure)
    for index, (prompt, options) in ((0, good[0]), (len(pairs) - 1, good[1])):
        done = found[index]
        assert isinstance(done, foretell.Completion)
        assert done.tokens == engine.generate(prompt, **options).tokens


class Counting:
    """A denoiser that counts its passes, and may break."""

    def __init__(self, inner: Denoiser, error: Exception | None = None) -> None:
        self.inner, self.error, self.passes = inner, error, 0

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        self.passes += 1
        if self.error is not None and self.passes == 3:
            raise self.error
        return self.inner(inputs)

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def test_a_list_with_a_bad_prompt_is_refused_before_anything_is_decoded(engine: foretell.Engine) -> None:
    model = Counting(engine.model)
    watched = foretell.Engine(model, engine.codec)
    prompts: list[Any] = [PROMPT, "Tom has 3 Zanzibar.", PROMPT, 3]
    message = r"^prompts\[1\] and 1 more cannot be decoded: .*Zanzibar"
    with pytest.raises(VocabularyError, match=message):
        watched.generate(prompts, **SMALL)
    pairs = [(prompt, watched.template(**SMALL)) for prompt in prompts]
    with pytest.raises(VocabularyError, match=message):
        watched.generate_iter(pairs)
    with pytest.raises(RequestError, match=r"^prompts\[0\] cannot be decoded: .*Zanzibar"):
        watched.generate(prompts[1:2], **SMALL)
    with pytest.raises(RequestError, match="unknown errors 'ignore'"):
        watched.generate_iter(pairs, errors="ignore")  # type: ignore[call-overload]
    assert model.passes == 0


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ModelError("a broken tensor")])
def test_what_the_model_raises_is_nobodys_failure(engine: foretell.Engine, error: Exception) -> None:
    broken = foretell.Engine(Counting(engine.model, error), engine.codec)
    with pytest.raises(type(error), match=str(error)):
        list(broken.generate_iter([(PROMPT, broken.template(**SMALL))] * 2, errors="return"))


def test_a_recipe_that_the_model_cannot_do_fails_alone(engine: foretell.Engine) -> None:
    size = engine.codec.tokenizer.get_vocab_size()
    closed_form = foretell.Engine(Toy(vocab=size, mask_id=engine.model.mask_id), engine.codec)
    recipes = (f"full cache={name}" for name in ("off", "dual"))
    pairs = [(PROMPT, closed_form.template(max_new_tokens=4, recipe=recipe)) for recipe in recipes]
    done, failed = (
        one for _, one in sorted(closed_form.generate_iter(pairs, errors="return"), key=lambda pair: pair[0])
    )
    assert isinstance(done, foretell.Completion)
    assert isinstance(failed, foretell.Failure)
    assert "has no cache" in str(failed)


def test_usage_adds_up(engine: foretell.Engine) -> None:
    fresh = foretell.Engine(engine.model, engine.codec)
    assert (fresh.usage.columns_computed, fresh.usage.padding) == (0, 0.0)
    done = fresh.generate([PROMPT, "Tom has 3 apples."], **SMALL)
    assert fresh.usage.columns_needed == sum(one.columns_needed for one in done)
    assert fresh.usage.columns_computed == sum(one.columns_computed for one in done)
    assert 0 < fresh.usage.padding < 0.5
    before = fresh.usage
    alone = fresh.generate(PROMPT, **SMALL)
    assert alone.columns_computed == alone.columns_needed == fresh.usage.columns_computed - before.columns_computed


def test_prompts_of_like_length_are_decoded_together(engine: foretell.Engine) -> None:
    fresh = foretell.Engine(engine.model, engine.codec)
    fresh.generate(["Tom has 3 apples.", " ".join([PROMPT] * 4)] * 6, batch_size=2, max_new_tokens=4)
    assert fresh.usage.padding == 0  # a short and a long one in every pass would make it 0.3


FOUND = r"prophet stop.tau.high=2 stop.tau.mid=1 region=pattern(r'[A-Za-z]{4,}')"


def test_an_answer_found_in_the_text(engine: foretell.Engine) -> None:
    """The same alone, in a batch and as a stream, and the replayed exit is the live one."""
    prompts = [PROMPT, "Tom has 3 apples.", "He eats 5."]
    together = engine.generate(prompts, batch_size=2, recipe=FOUND, trace=True, **SMALL)
    for prompt, one in zip(prompts, together, strict=True):
        alone = engine.generate(prompt, recipe=FOUND, trace=True, **SMALL)
        assert (alone.tokens, alone.exit, alone.answer) == (one.tokens, one.exit, one.answer)
        (*_, last) = engine.stream(prompt, recipe=FOUND, **SMALL)
        assert last.completion is not None
        assert last.completion.tokens == one.tokens
        assert one.answer is not None
        assert one.answer in one.text
        assert one.notes == ()
        assert one.trace is not None
        assert one.trace.replay(foretell.parse(FOUND).stop) == one.exit
        full = engine.generate(prompt, trace=True, **SMALL).trace
        assert full is not None
        assert full.replay(foretell.parse(FOUND).stop, foretell.parse(FOUND).region) == one.exit
    assert any(one.finish == "settled" for one in together)
    assert engine.generate(PROMPT, recipe="prophet region=boxed", **SMALL).answer is None


def test_stream_equals_generate(engine: foretell.Engine) -> None:
    asked: dict[str, Any] = {
        "recipe": "prophet stop.tau.high=2",
        "suffix": "The answer is",
        "answer_length": 2,
        **SMALL,
    }
    frames = list(engine.stream(PROMPT, **asked))
    assert frames[-1].completion is not None
    assert frames[-1].text == frames[-1].completion.text != ""
    assert repr(engine).startswith("Engine(random: 0.0")
    made = engine.generate(PROMPT, **asked)
    assert frames[-1].completion is not None
    assert frames[-1].completion.tokens == made.tokens == frames[-1].tokens
    assert len(frames) == made.steps
    assert all(frame.completion is None for frame in frames[:-1])
    assert all(frame.gauge is not None and frame.gauge[0] < frame.gauge[1] for frame in frames[:-1])
    filled = [sum(frame.filled) for frame in frames]
    assert filled == sorted(filled)
    assert filled[-1] == 16
    assert [sum(frame.fresh) for frame in frames] == [b - a for a, b in zip([3, *filled], filled, strict=False)]


def test_noise_follows_from_the_seed_and_the_prompt(engine: foretell.Engine, checkpoint: Path, tmp_path: Path) -> None:
    """Not from the batch, the order or the name of an example; so every way to decode a prompt draws the same."""
    prompts = [PROMPT, "Tom has 4 boxes .", PROMPT]
    asked: dict[str, Any] = {"temperature": 50.0, "trace": True, **SMALL}
    made = engine.generate(prompts, seed=3, **asked)
    seeds = [one.trace.request.seed for one in made if one.trace is not None]
    assert seeds[0] == seeds[2] != seeds[1], "equal prompts are given equal noise, others their own"
    assert made[0].tokens == made[2].tokens
    other = engine.generate(prompts[::-1], seed=3, batch_size=1, **asked)
    assert [one.tokens for one in other] == [one.tokens for one in made[::-1]]
    assert engine.generate(PROMPT, seed=4, **asked).tokens != made[0].tokens, "several answers: several seeds"
    (*_, last) = engine.stream(prompts[1], seed=3, **asked)
    assert last.completion is not None
    assert last.completion.tokens == made[1].tokens
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(json.dumps({"id": name, "prompt": one}) + "\n" for name, one in zip("ab", prompts[:2], strict=True))
    )
    what = Evaluation(
        str(checkpoint), "prompts", ("full sample=gumbel(50.0)",), tmp_path / "out", source=file, seed=3, options=SMALL
    )
    assert {one.id: one.text for one in evaluate(what)} == {"a": made[0].text, "b": made[1].text}
    ids = engine.request(PROMPT, engine.template(seed=3, **SMALL)).prompt
    assert engine.generate(ids, seed=3, **asked).tokens == made[0].tokens, "tokens, not the text"
    texts = [
        engine.request(MaskedText(text), engine.fill_template(seed=3))
        for text in ("Tom [MASK] boxes", "boxes [MASK] Tom")
    ]
    assert texts[0].prompt == texts[1].prompt == ()
    assert texts[0].seed != texts[1].seed, "a text with masks has its own noise, too"


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"seed": 1, "temperature": 1.0}, False),
        ({"temperature": 1.0}, False),
        ({"top_p": 0.9}, False),
        ({"top_k": 5}, False),
        ({"remasking": "random"}, False),
        ({"remasking": "entropy"}, False),
        ({"alg": "topk_margin"}, False),
        ({"cfg_scale": 2.0}, False),
        ({"threshold": 0.05}, False),
        ({"dynamic_threshold": 0.05}, False),
        ({"threshold": 1.0}, True),
        ({"entropy_bound": 20.0}, False),
        ({"eb_threshold": 20.0}, False),
        ({"steps": 4}, False),
        ({"block_size": 16}, False),
        ({"pins": {0: "Tom"}}, False),
        ({"suffix": "The answer is"}, False),
        ({"seed": 5}, True),
        ({"temperature": 0.0}, True),
        ({"gen_length": 16}, True),
    ],
)
def test_options_change_the_result(engine: foretell.Engine, changed: dict[str, Any], same: bool) -> None:
    plain = engine.generate(PROMPT, **SMALL)
    given = {key: value for key, value in SMALL.items() if ALIASES.get(next(iter(changed))) != key}
    assert (engine.generate(PROMPT, **(given | changed)).tokens == plain.tokens) is same


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_new_token": 8}, RequestError, "unknown argument 'max_new_token'; did you mean 'max_new_tokens'"),
        ({"steps": 2, "diffusion_steps": 3}, RequestError, "another name for 'steps'"),
        ({"recipe": "profet"}, RecipeError, "did you mean 'prophet'"),
        ({"remasking": "low_confidense"}, RecipeError, "did you mean 'low_confidence'"),
        ({"temperature": -1.0}, RecipeError, "from 0 to 1000000, got -1.0"),
        ({"max_new_tokens": 0}, RequestError, "max_new_tokens must be from 1 to 1048576, got 0"),
        (
            {"suffix": "The answer is", "answer_length": 15, "max_new_tokens": 16},
            LayoutError,
            "do not fit a window of 16",
        ),
        ({"answer_length": 2, "answer_start": 15, "max_new_tokens": 16}, LayoutError, "does not fit a window of 16"),
        ({"pins": {99: 5}, "max_new_tokens": 16}, LayoutError, "must lie in 0..15, got 99"),
        ({"pins": {0: 3}}, RequestError, "mask token 3 cannot be pinned"),
        ({"layout": "sudoku"}, RequestError, "has no layouts, so 'sudoku' is unknown"),
        (
            {"max_new_tokens": 250},
            RequestError,
            "and a window of 250 exceed the context of 256 tokens that this model supports",
        ),
        ({"steps": "8"}, RecipeError, "steps must be a number, got '8'"),
        ({"steps": 4.5}, RecipeError, "steps must be a whole number, got 4.5"),
        ({"max_new_tokens": 8.0}, RequestError, "max_new_tokens must be a whole number, got 8.0"),
        ({"temperature": "a"}, RecipeError, "temperature must be a number, got 'a'"),
        ({"seed": 2**64}, RequestError, "seed must be from 0 to"),
        ({"cfg_scale": float("inf")}, RecipeError, "guidance must be from 0 to 1000000"),
        ({"pins": {"0": 3}}, RequestError, "a pinned offset must be a number, got '0'"),
        ({"pins": {0: 1.5}}, RequestError, "pins map a window offset to a token id or a text, got 1.5 at 0"),
        ({"pins": {0: 5000}}, RequestError, "token 5000 pinned at 0 is outside the vocabulary of 126 tokens"),
        ({"answer_start": 3}, LayoutError, "answer_start=3 needs an answer_length"),
        (
            {"pins": {12: "Tom"}, "suffix": "The answer is", "answer_length": 2, "max_new_tokens": 16},
            LayoutError,
            "position 12 is pinned, but the suffix",
        ),
        ({"chat": "yes"}, RequestError, "chat must be True, False or None, got 'yes'"),
        ({"stop_at_eos": "no"}, RequestError, "stop_at_eos must be True, False or None, got 'no'"),
        ({"stop_strings": ""}, RequestError, "stop_strings must be a non-empty string or .*, got ''"),
        ({"stop_strings": ["a", ""]}, RequestError, r"got \['a', ''\]"),
        ({"stop_strings": 3}, RequestError, "list of them, got 3"),
        ({"stop_strings": "a", "until": "b"}, RequestError, "another name for 'stop_strings'"),
        ({"stop": "###"}, RecipeError, r"use stop_strings \(--stop-string\)"),
        ({"stop": ["\n"]}, RequestError, r"stop must be a rule.*use stop_strings \(--stop-string\)"),
        ({"batch_size": 0}, RequestError, "batch_size must be at least 1"),
        ({"batch_size": "8"}, RequestError, "batch_size must be a number, got '8'"),
        ({"trace": "yes"}, RequestError, "trace must be True or False, got 'yes'"),
        ({"streamer": print}, RequestError, "a streamer has the methods put and end, got <built-in function print>"),
        ({"recipe": None}, RequestError, "recipe must be a recipe, its text, or the file of a certified one, got None"),
        ({"on_mismatch": 10**5000}, RequestError, "unknown on_mismatch a number of thousands of digits"),
        ({"eps": 10**5000}, RequestError, "write instead: .*transfer.eps=a number of thousands"),
        ({"answer_start": 10**5000}, LayoutError, "answer_start=a number of thousands of digits needs"),
        ({"threshold": 0.9, "dynamic_threshold": 0.9}, RequestError, "another name for 'threshold'"),
        ({"threshold": 0.9, "eb_threshold": 0.1}, RequestError, "both choose which masks are filled at once"),
        ({"threshold": 1.1}, RecipeError, "threshold's value must be from 0 to 1, got 1.1"),
        ({"recipe": "prophet", "threshold": 0.9}, RecipeError, "counts filled tokens"),
    ],
)
def test_bad_options_are_named(
    engine: foretell.Engine, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.generate(PROMPT, **options)


def test_raw_prompts(engine: foretell.Engine) -> None:
    """The same raw prompt however it is asked for, and another than the templated one."""
    raw = tuple(engine.codec.encode(PROMPT, special=True))
    assert engine.request(PROMPT, engine.template(chat=False, **SMALL)).prompt == raw
    assert engine.request(PROMPT, engine.template(**SMALL)).prompt == tuple(engine.codec.chat(PROMPT)) != raw
    made = engine.generate(PROMPT, chat=False, **SMALL)
    *_, last = engine.stream(PROMPT, chat=False, **SMALL)
    ((_, one),) = engine.generate_iter([(PROMPT, engine.template(chat=False, **SMALL))])
    assert last.completion is not None
    assert made.tokens == last.completion.tokens == one.tokens != engine.generate(PROMPT, **SMALL).tokens
    assert made.prompt_tokens == len(raw)


def test_a_checkpoint_without_a_template_of_its_own_is_raw(literate: Path) -> None:
    engine = foretell.load(literate)
    prompts = {chat: engine.request(PROMPT, engine.template(chat=chat)).prompt for chat in (None, False, True)}
    assert prompts[None] == prompts[False] == tuple(engine.codec.encode(PROMPT))
    assert prompts[True] == engine.request([{"role": "user", "content": PROMPT}], engine.template()).prompt
    assert engine.codec.decode(prompts[True], skip_special=False).startswith("<|startoftext|><|start_header_id|>user")


def test_token_ids_are_a_prompt(engine: foretell.Engine) -> None:
    """As a list, a tuple or an array, alone or among others; nothing is put around them."""
    ids = engine.codec.chat(PROMPT)
    made = engine.generate(PROMPT, **SMALL)
    alone: list[Any] = [
        ids,
        tuple(ids),
        torch.tensor(ids),
        np.array(ids, dtype=np.int32),
        [np.int64(one) for one in ids],
    ]
    for prompt in alone:
        assert engine.generate(prompt, **SMALL).tokens == made.tokens
    *_, last = engine.stream(torch.tensor(ids), **SMALL)
    assert last.tokens == made.tokens
    assert [one.tokens for one in engine.generate([*alone, PROMPT], **SMALL)] == [made.tokens] * 6
    assert engine.generate([5], **SMALL).prompt_tokens == 1


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            [5, 126],
            "token 126 at 1 of the prompt is outside the vocabulary, whose ids are whole numbers from 0 to 125",
        ),
        ([5, -1], "token -1 at 1"),
        ([5, 6.0], "token 6.0 at 1"),
        ([5, True], "token True at 1"),
        ([5, "Tom"], "token 'Tom' at 1"),
        (torch.tensor([1.5]), "token 1.5 at 0"),
        (torch.tensor([True]), "token True at 0"),
        (np.array([5, 126]), "token 126 at 1"),
        (torch.tensor([[5, 6]]), r"must have one dimension and at least one id, got the shape \(1, 2\)"),
        (np.array([], dtype=int), r"got the shape \(0,\)"),
        ([5, 3], "the prompt holds the mask token"),
        (b"Tom", "a string, a list of messages or a list of token ids, got bytes"),
        ({"input_ids": [5]}, "a list of token ids, got dict"),
        ([[]], r"a list of token ids, got \[\]"),
        ([[[5]]], r"a list of token ids, got \[\[5\]\]"),
        ([True], "a list of token ids, got bool"),
    ],
)
def test_bad_token_ids_are_named(engine: foretell.Engine, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.generate(prompt, **SMALL)


def test_a_folder_without_a_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    """It decodes token ids; whatever needs text is refused before anything is decoded."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(checkpoint / name)
    engine, whole = foretell.load(tmp_path), foretell.load(checkpoint)
    asked: dict[str, Any] = {"recipe": "prophet stop.tau.high=2", "answer_length": 3, "trace": True, **SMALL}
    ids = whole.codec.chat(PROMPT)
    made, read = engine.generate(ids, **asked), whole.generate(ids, **asked)
    assert (made.tokens, made.steps, made.exit) == (read.tokens, read.steps, read.exit)
    assert (made.text, made.answer, made.response_tokens) == ("", None, read.response_tokens)
    assert made.notes == (NO_TEXT,)
    *_, last = engine.stream(ids, **asked)
    assert last.completion is not None
    assert (last.tokens, last.text, last.completion.notes) == (made.tokens, "", made.notes)
    talk = [{"role": "user", "content": PROMPT}]
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (PROMPT, {}),
        (talk, {}),
        (ids, {"suffix": "is"}),
        (ids, {"pins": {0: "is"}}),
    ]
    for prompt, options in wrong:
        with pytest.raises(RequestError, match="has no tokenizer, so it cannot read text; give token ids"):
            engine.generate(prompt, **SMALL, **options)
    with pytest.raises(
        RequestError, match=r"stop_strings=\('a',\) cut the text, and the model's folder has no tokenizer"
    ):
        engine.generate(ids, stop_strings="a", **SMALL)
    with pytest.raises(RequestError, match=r"region=boxed looks for the answer in the text, and .* no tokenizer"):
        engine.generate(ids, recipe="prophet region=boxed", **SMALL)


def test_the_text_is_cut_at_the_first_stop_string(engine: foretell.Engine) -> None:
    """Alone, in a batch and in every frame; the tokens and the decoding stay what they were."""
    asked: dict[str, Any] = {
        "recipe": "prophet stop.tau.high=2",
        "suffix": "The answer is",
        "answer_length": 2,
        **SMALL,
    }
    whole = engine.generate(PROMPT, **asked)
    assert whole.answer is not None
    place = 3 + len(engine.codec.decode(whole.tokens[:2]))
    string = whole.text[place : place + 3]  # a part of the third word
    place = whole.text.index(string)
    cut = engine.generate(PROMPT, stop_strings=("nowhere", string, "answer"), **asked)
    assert (cut.text, cut.stop_string) == (whole.text[:place], string)
    assert (cut.tokens, cut.steps, cut.finish, cut.answer) == (whole.tokens, whole.steps, whole.finish, whole.answer)
    assert len(engine.codec.decode(cut.tokens[: cut.response_tokens - 1])) < place
    assert engine.codec.decode(cut.tokens[: cut.response_tokens]).startswith(cut.text.rstrip())
    for name in ("stop_string", "stop_sequences", "until"):
        assert engine.generate([PROMPT], **{name: string}, **asked)[0].text == cut.text
    frames = list(engine.stream(PROMPT, stop_strings=string, **asked))
    assert not any(string in frame.text for frame in frames)
    assert [frame.tokens for frame in frames] == [frame.tokens for frame in engine.stream(PROMPT, **asked)]
    assert frames[-1].completion is not None
    assert (frames[-1].text, frames[-1].completion.text) == (cut.text, cut.text)
    none = engine.generate(PROMPT, stop_strings=["nowhere"], **asked)
    assert replace(none, seconds=0.0) == replace(whole, seconds=0.0)


def test_an_answer_ends_at_a_stop_string_too(engine: foretell.Engine) -> None:
    asked: dict[str, Any] = {"answer_start": 4, "answer_length": 8, **SMALL}
    whole = engine.generate(PROMPT, **asked).answer
    assert whole is not None
    string = whole.split()[2]
    assert engine.generate(PROMPT, stop_strings=string, **asked).answer == whole[: whole.index(string)]


@pytest.mark.parametrize(
    ("text", "strings", "expected"),
    [
        ("one. two\n\nthree", ("\n\n", "."), ("one", ".")),
        ("one", (".",), ("one", None)),
        ("one", (), ("one", None)),
        ("one", ("on", "o"), ("", "on")),
    ],
)
def test_texts_are_cut(text: str, strings: tuple[str, ...], expected: tuple[str, str | None]) -> None:
    assert cut_text(text, strings) == expected


def test_characters_of_several_tokens_are_counted_whole(literate: Path) -> None:
    codec = foretell.load(literate).codec
    ids = codec.encode("é🙂é. Ω")
    engine = foretell.load(literate)
    pins: dict[int, int | str] = dict(enumerate(ids))
    made = engine.generate([5], pins=pins, max_new_tokens=len(ids) + 1, stop_strings=".")
    assert (made.text, made.response_tokens) == ("é🙂é", len(codec.encode("é🙂é")))


def test_keywords_of_other_decoders_are_answered_with_a_recipe(engine: foretell.Engine) -> None:
    """Every recipe that a hint names can be read, and has the given value in it."""
    for name in HINTS:
        with pytest.raises(RequestError) as refused:
            engine.template(**{name: 0.625})  # type: ignore[arg-type]
        said = str(refused.value)
        assert said.startswith(f"unknown argument {name!r}; write instead: ")
        for text in re.findall('recipe="(.*?)"', said):
            recipe = foretell.parse(text)
            assert ("0.625" in str(recipe)) == (name in ("alg_temp", "eps", "factor"))
    with pytest.raises(RequestError, match=r"write instead: recipe=\"factor transfer.factor=1.5\"$"):
        engine.generate(PROMPT, factor=1.5)  # type: ignore[call-overload]
    with pytest.raises(RequestError, match=r"write instead: pins=\{3: 7\}, a mapping from"):
        engine.generate(PROMPT, constraints={3: 7})  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="dream transfer=timesteps\\(independent=true\\)"):
        engine.generate(PROMPT, alg="origin")  # type: ignore[call-overload]
    assert not HINTS.keys() & {*ALIASES, *(field.name for field in fields(Options))}


def test_a_mask_after_the_vocabulary(checkpoint: Path, tmp_path: Path) -> None:
    """The mask is the number of outputs, and neither the head nor the tokenizer has it."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(checkpoint / name)
    torch.manual_seed(0)
    shape = TransformerConfig(127, 126, dim=32, layers=2, heads=2, kv_heads=2, hidden=48, outputs=126)
    save_llada(Transformer(shape), tmp_path, eos_token_id=2)
    engine = foretell.load(tmp_path)
    assert (engine.model.mask_id, engine.codec.mask_id, engine.codec.vocab_size) == (126, 126, 127)
    for recipe in ("full", "fast-dllm-prophet guidance=1.0", "dual sample=gumbel(1.0) score=margin"):
        done = engine.generate(PROMPT, recipe=recipe, answer_length=2, **SMALL)
        assert max(done.tokens) < 126
    with pytest.raises(RequestError, match="the prompt holds the mask token"):
        engine.generate([126], **SMALL)


def test_masks_in_a_prompt_are_refused(engine: foretell.Engine) -> None:
    with pytest.raises(RequestError, match="the prompt holds the mask token"):
        engine.generate("Tom has <|mdm_mask|> apples.", chat=False, **SMALL)


def test_unknown_words_are_named(engine: foretell.Engine) -> None:
    with pytest.raises(VocabularyError, match="Zanzibar"):
        engine.generate("Tom has 3 Zanzibar.", **SMALL)


@pytest.mark.parametrize("rule", ["prophet(tau=linear(0,0))", "sure(100)", "persistent(1)", "stable(1,100.0)"])
def test_without_a_region_no_rule_fires(engine: foretell.Engine, rule: str) -> None:
    """The transfer decodes alone, and the completion says so; watching every mask is a choice by name."""
    out, full = (engine.generate(PROMPT, recipe=f"full stop={one}", **SMALL) for one in (rule, "never"))
    assert (out.tokens, out.steps, out.finish) == (full.tokens, full.steps, "complete")
    assert out.notes == (NO_REGION.format(rule=rule.partition("(")[0]),)
    assert full.notes == ()
    named = engine.generate(PROMPT, recipe=f"full stop={rule} region=masked", **SMALL)
    assert (named.finish, named.notes) == ("settled", ())
    assert named.steps < full.steps


@dataclass(frozen=True)
class AfterFirstStep:
    """Settles once anything is filled, wherever the answer is."""

    def reads(self, state: StateView) -> Tensor:
        return state.masked

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        return Verdict(state.step > 0)


def test_a_rule_that_needs_no_region_may_fire_without_one(engine: foretell.Engine) -> None:
    out = engine.generate(PROMPT, recipe=foretell.Recipe(stop=AfterFirstStep()), **SMALL)
    assert (out.steps, out.finish, out.notes) == (2, "settled", ())


@pytest.mark.parametrize("region", ["fixed(offset=300,length=4)", "after"])
def test_a_region_that_is_empty_here_is_noted(engine: foretell.Engine, region: str) -> None:
    asked = engine.template(recipe=f"prophet region={region}", **SMALL)
    assert asked.notes == (NO_REGION.format(rule="prophet"),)


def test_a_region_of_pinned_tokens_is_empty(engine: foretell.Engine) -> None:
    asked: dict[str, Any] = {"recipe": "prophet", "answer_start": 2, "max_new_tokens": 8, "pins": {2: "Tom has"}}
    assert engine.template(**asked, answer_length=2).notes == (NO_REGION.format(rule="prophet"),)
    assert engine.template(**asked, answer_length=3).notes == ()


def test_a_budget_that_forces_tokens_is_noted(engine: foretell.Engine) -> None:
    asked: dict[str, Any] = {"recipe": "threshold transfer.value=1.0", **SMALL}
    out = engine.generate(PROMPT, **asked, steps=2)
    (note,) = out.notes
    said = (
        "the budget of 2 steps ended before threshold had filled the text, so the last step committed 14 of 16 tokens"
    )
    assert said in note
    assert engine.generate(PROMPT, **asked).notes == ()
    assert engine.generate(PROMPT, recipe="full", steps=2, **SMALL).notes == ()
    assert list(engine.stream(PROMPT, **asked, steps=2))[-1].completion.notes == out.notes  # type: ignore[union-attr]


def test_a_prompt_is_text_or_messages(engine: foretell.Engine) -> None:
    with pytest.raises(RequestError, match="a string, a list of messages or a list of token ids, got int"):
        engine.generate(3)  # type: ignore[call-overload]


def test_bundled_names_are_suggested() -> None:
    with pytest.raises(ModelError, match="there is no folder 'tinny'"):
        foretell.load("tinny")


def test_ends_of_text_are_streamed_and_traced_as_emitted(engine: foretell.Engine) -> None:
    """What a frame shows and a trace keeps behind an end of text is what the completion holds there."""
    ended = 0
    for seed in range(12):
        asked: dict[str, Any] = {"stop_at_eos": True, "temperature": 50.0, "seed": seed, **SMALL}
        *_, last = engine.stream(PROMPT, trace=True, **asked)
        assert last.completion is not None
        assert last.completion.trace is not None
        assert last.tokens == last.completion.tokens == tuple(last.completion.trace.tokens[-1].tolist())
        assert (last.completion.trace.filled_at < len(last.completion.trace)).all()
        ended += last.completion.finish == "eos"
    assert ended


def test_model_layouts_are_defaults(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    described = {
        "default": "short",
        "layouts": {
            "short": {"max_new_tokens": 8, "block_length": 4, "suffix": "The answer is", "answer_length": 2},
            "long": {"max_new_tokens": 24, "steps": 6},
        },
    }
    (folder / "foretell.json").write_text(json.dumps(described))
    engine = foretell.load(folder)
    assert engine.template().layout == foretell.Layout.with_suffix(8, engine.codec.encode("The answer is"), 2)
    assert engine.template().recipe.block_length == 4
    assert engine.template(recipe="full block_length=3").recipe.block_length == 3
    assert engine.template(block_length=5).recipe.block_length == 5
    assert engine.template(recipe=foretell.Recipe(block_length=7)).recipe.block_length == 7
    assert engine.template(layout="long").layout == foretell.Layout(24)
    assert engine.template(layout="long").recipe.steps == 6
    assert engine.template(layout="long", recipe="full steps=5").recipe.steps == 5
    assert engine.template(layout="long", steps=4).recipe.steps == 4
    assert engine.template(suffix="").layout.pins == ()
    with pytest.raises(RequestError, match="did you mean 'long'"):
        engine.template(layout="lon")
    (folder / "foretell.json").write_text(json.dumps({"layouts": {"short": {"max_new_token": 8}}}))
    with pytest.raises(ModelError, match="did you mean 'max_new_tokens'"):
        foretell.load(folder)
    for choice in ({"chat": False}, {"stop_strings": ["."]}):
        (folder / "foretell.json").write_text(json.dumps({"layouts": {"short": choice}}))
        with pytest.raises(ModelError, match=f"unknown key '{next(iter(choice))}'"):
            foretell.load(folder)
    (folder / "foretell.json").write_text(json.dumps({"layouts": {"short": {"max_new_tokens": "8"}}}))
    with pytest.raises(
        ModelError, match=r"json, layout 'short': 'max_new_tokens' must be a whole number or null, got '8'"
    ):
        foretell.load(folder)
    (folder / "foretell.json").write_text(json.dumps({"layout": {}}))
    with pytest.raises(ModelError, match=r"foretell\.json: unknown key 'layout'; did you mean 'layouts'"):
        foretell.load(folder)
    (folder / "foretell.json").write_text("{")
    with pytest.raises(ModelError, match=r"foretell\.json is not valid JSON"):
        foretell.load(folder)


def test_streamers(engine: foretell.Engine) -> None:
    class Listener:
        def __init__(self) -> None:
            self.calls: list[tuple[str, list[int]]] = []

        def put(self, value: torch.Tensor) -> None:
            self.calls.append(("put", value.flatten().tolist()))

        def put_draft(self, value: torch.Tensor) -> None:
            self.calls.append(("draft", value.flatten().tolist()))

        def end(self) -> None:
            self.calls.append(("end", []))

    listener = Listener()
    out = engine.generate(PROMPT, streamer=listener, **SMALL)
    kinds = [kind for kind, _ in listener.calls]
    assert kinds == ["put", *["draft"] * out.steps, "put", "end"]
    assert listener.calls[0][1] == engine.codec.chat(PROMPT)
    assert listener.calls[-2][1] == list(out.tokens)
    with pytest.raises(RequestError, match="one prompt at a time"):
        engine.generate([PROMPT, PROMPT], streamer=listener, **SMALL)  # type: ignore[arg-type]


def test_transformers_streamer(engine: foretell.Engine, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoTokenizer, TextDiffusionStreamer

    streamer = TextDiffusionStreamer(AutoTokenizer.from_pretrained(checkpoint), skip_prompt=True)
    out = engine.generate(PROMPT, streamer=streamer, **SMALL)
    assert capsys.readouterr().out.count("\033") >= out.steps


def test_saved_and_rates() -> None:
    done = foretell.Completion("a", None, (1, 2), 6, 3, 4, 16, 4, "settled", 0.5)
    assert done.saved == 12
    assert replace(done, given=3).saved == 9
    assert done.tokens_per_forward == 1.5


@pytest.mark.parametrize("idle", [False, True])
def test_what_a_full_decoding_takes_is_known_beforehand(idle: bool) -> None:
    """For any window, pins, blocks and budget; idle steps only of a full one, as in the reference."""
    rng = random.Random(7)
    for _ in range(60):
        length = rng.randint(1, 14)
        pins = tuple((at, 5) for at in sorted(rng.sample(range(length), rng.randint(0, length - 1))))
        budget = rng.randint(length if idle else 1, length + 3)
        recipe = foretell.Recipe(budget, rng.choice([None, 1, 2, 3, 5]), transfer=Quota(idle))
        request = Request((1, 2), Layout(length, pins), recipe)
        assert len(list(decode(Toy(), lay_out([request], 0), recipe))) == scheduled_steps(request), request


def test_the_keywords_of_generate_are_the_fields_of_options() -> None:
    assert is_typeddict(GenerateOptions)
    assert not GenerateOptions.__required_keys__
    assert list(GenerateOptions.__annotations__) == [field.name for field in fields(Options)]


@pytest.mark.parametrize("method", ["generate", "stream", "template"])
def test_a_type_checker_knows_the_keywords(method: str) -> None:
    """With any other annotation, such as `Any`, a misspelt keyword passes mypy."""
    function = getattr(foretell.Engine, method)
    (keywords,) = (one for one in signature(function).parameters.values() if one.kind is one.VAR_KEYWORD)
    assert get_type_hints(function)[keywords.name] == Unpack[GenerateOptions]


def test_all_is_sorted_and_there() -> None:
    plain = [name for name in foretell.__all__ if name not in ("POLICIES", "PRESETS")]
    assert plain == sorted(plain)
    assert all(hasattr(foretell, name) for name in foretell.__all__)


def test_import_is_light() -> None:
    names = ("huggingface_hub", "matplotlib", "transformers", "typer")
    code = f"import sys, foretell; foretell.load('tiny'); print([m for m in {names} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_iterator_is_pulled_when_slots_are_free(engine: foretell.Engine) -> None:
    """At most `batch_size` requests are taken before one is done, and an invalid one does not hold up the others."""
    template, pulled = engine.template(max_new_tokens=4, chat=False), 0

    def feed() -> Iterator[tuple[Any, RequestTemplate]]:
        nonlocal pulled
        for prompt in (*[PROMPT] * 3, 7, "Tom eats 5.", [engine.model.mask_id], "He eats 5."):
            pulled += 1
            yield prompt, template

    seen: dict[int, Completion | Failure] = {}
    for index, done in engine.generate_iter(feed(), batch_size=2, errors="return"):
        assert pulled <= len(seen) + 2 + 1  # and one invalid one
        seen[index] = done
    assert sorted(seen) == list(range(7))
    assert [index for index, one in seen.items() if isinstance(one, Failure)] == [3, 5]
    good = [one for one in seen.values() if isinstance(one, Completion)]
    alone = engine.generate([PROMPT, "Tom eats 5.", "He eats 5."], max_new_tokens=4, chat=False)
    assert {one.tokens for one in good} == {one.tokens for one in alone}
    with pytest.raises(RequestError, match=r"prompts\[3\] cannot be decoded"):
        list(engine.generate_iter(feed(), batch_size=2))


def test_a_template_may_ask_for_a_trace(engine: foretell.Engine) -> None:
    plain = engine.template(max_new_tokens=4, chat=False)
    done = dict(engine.generate_iter([(PROMPT, plain), (PROMPT, replace(plain, trace=True))]))
    assert done[0].trace is None
    assert done[1].trace is not None
    assert done[0].tokens == done[1].tokens

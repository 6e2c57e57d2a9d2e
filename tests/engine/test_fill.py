"""Masks of a text are filled in place, and everything else stays as it is."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import BertConfig, BertForMaskedLM

import foretell
from foretell.engine.completion import generated_tokens
from foretell.engine.masked_text import MaskedText
from foretell.engine.request import Layout
from foretell.errors import RequestError, VocabularyError
from tests.models.test_huggingface import SHAPE, write, write_tokenizer


@pytest.fixture(scope="module")
def tiny() -> foretell.Engine:
    return foretell.load("tiny")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> foretell.Engine:
    folder = tmp_path_factory.mktemp("models")
    write(folder, BertForMaskedLM(BertConfig(**SHAPE | {"vocab_size": 8})))
    write_tokenizer(folder)
    return foretell.load(folder)


@pytest.fixture(scope="module")
def literal(literate: Path) -> foretell.Engine:
    return foretell.load(literate)


def test_a_masked_lm_fills_its_masks(bert: foretell.Engine) -> None:
    done = bert.fill("a [MASK] sat[MASK*2]cat")
    request = bert.request(MaskedText("a [MASK] sat[MASK*2]cat"), bert.fill_template())
    assert (request.prompt, request.layout.length, request.layout.padding) == ((), 24, 16)  # 24 is the context
    assert request.layout.pins[16:] == ((16, 2), (17, 5), (19, 7), (22, 6), (23, 3))  # [CLS] a, sat, cat [SEP]
    assert done.tokens[:2] + done.tokens[-2:] == (2, 5, 6, 3)
    first, second = done.fills
    assert done.text == f"a {first} sat {second} cat"
    assert len(second.split()) == 2
    assert (done.response_tokens, done.steps, done.answer) == (3, 3, None)


@pytest.mark.parametrize("recipe", ["full", "prophet", "swift", "threshold transfer.value=0.3", "dream", "sched"])
def test_every_recipe_leaves_the_text_alone(tiny: foretell.Engine, recipe: str) -> None:
    text = "Tom has 3 [MASK] with [MASK*2] apples each.  He eats 5."
    done = tiny.fill(text, recipe=recipe, trace=True)
    one, two = done.fills
    assert done.text == f"Tom has 3 {one} with {two} apples each.  He eats 5."
    assert done.trace is not None
    assert len(done.trace) == done.steps
    request = tiny.request(MaskedText(text), tiny.fill_template(recipe=recipe))
    padding = request.layout.padding
    assert all(done.tokens[offset - padding] == token for offset, token in request.layout.pins[padding:])
    assert done.trace.filled_at[:padding].tolist() == [-1] * padding


def test_the_mask_may_be_the_tokenizers_own(literal: foretell.Engine) -> None:
    own = literal.codec.tokenizer.id_to_token(literal.codec.mask_id or 0)
    texts = ["The answer is [MASK][MASK] B", f"The answer is {own}[MASK] B", "The answer is [MASK*2] B"]
    done = literal.fill(texts)
    assert {one.tokens for one in done} == {done[0].tokens}
    assert [len(one.fills) for one in done] == [2, 2, 1]
    for one in done:
        assert one.text.startswith("The answer is ")
        assert one.text.endswith(" B")


def test_texts_of_any_length_share_a_batch(tiny: foretell.Engine) -> None:
    texts = ["Tom has [MASK] boxes.", "Tom has 3 boxes. [MASK*4] apples each.", "[MASK*9] apples", "[MASK]"]
    template = tiny.fill_template(recipe="swift")
    kinds = {tiny.request(MaskedText(text), template).kind for text in texts}
    assert len(kinds) == 1
    for text in texts:
        request = tiny.request(MaskedText(text), template)
        assert request.budget == request.layout.length - len(request.layout.pins)
    done = tiny.fill(texts[0], recipe="full")
    assert (done.columns_needed, done.columns_computed) == (len(done.tokens), 32), "padding is computed, but not needed"


def test_a_long_prompt_before_the_mask_is_not_padded(tiny: foretell.Engine) -> None:
    request = tiny.request(MaskedText("Tom has 3 boxes. " * 12 + "[MASK]"), tiny.fill_template())
    assert (request.layout.length, request.layout.padding) == (32, 0)
    assert len(request.prompt) > 32


def test_texts_in_a_batch_are_as_they_are_alone(tiny: foretell.Engine) -> None:
    texts = ["Tom has [MASK] boxes.", "[MASK*4] apples each.", "He eats 5. How many [MASK*3]?", "a + [MASK] = 7"]
    options: Any = {"recipe": "threshold", "temperature": 0.8, "seed": 4}
    together = tiny.fill(texts[:3], **options)
    assert [one.text for one in together] == [tiny.fill(text, **options).text for text in texts[:3]]
    with pytest.raises(VocabularyError, match=r"prompts\[3\] cannot be decoded"):
        tiny.fill(texts, **options)


def test_a_tokenizer_without_the_mask_reads_the_parts(literate: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unnamed"
    shutil.copytree(literate, folder)
    known = foretell.load(literate)
    stored = (folder / "tokenizer.json").read_text().replace("<|mdm_mask|>", "<|another|>")
    Tokenizer.from_str(stored.replace('"special": true', '"special": false')).save(str(folder / "tokenizer.json"))
    unnamed = foretell.load(folder)
    text = "The answer is[MASK*3] 7"
    assert unnamed.codec.mask_id == known.codec.mask_id
    template = known.fill_template()
    assert unnamed.request(MaskedText(text), template) == known.request(MaskedText(text), template)


def test_a_mask_in_another_spelling_is_refused(tmp_path: Path) -> None:
    write(tmp_path, BertForMaskedLM(BertConfig(**SHAPE | {"vocab_size": 8})))
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([AddedToken("[MASK]", normalized=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    engine = foretell.load(tmp_path)
    assert len(engine.fill("a [MASK] sat").fills) == 1
    with pytest.raises(RequestError, match="reads a mask in another spelling"):
        engine.fill("a [Mask] sat [MASK]")


def test_zeros_before_a_number_of_masks_do_not_count(tiny: foretell.Engine) -> None:
    assert tiny.fill("[MASK*0000000012]").response_tokens == 12


def test_too_many_masks_are_refused_before_they_are_encoded(tiny: foretell.Engine) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="1000000 masks exceed the context of 256 tokens"):
            tiny.fill("[MASK*1000000]")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_all_masks_are_the_answer_and_one_block(tiny: foretell.Engine) -> None:
    text = "[MASK*40] apples"
    assert tiny.fill_template(recipe="prophet").notes == ()
    frames = list(tiny.stream_template(MaskedText(text), tiny.fill_template(recipe="prophet")))
    assert frames[0].answer == (*[True] * 40, False)
    assert len(frames[0].filled) == len(frames[0].tokens) == 41
    assert frames[-1].completion is not None
    assert frames[-1].text == frames[-1].completion.text
    assert any(any(frame.fresh[32:]) and not all(frame.filled[:32]) for frame in frames)


def test_an_end_of_text_is_proposed_only_if_allowed(tiny: foretell.Engine) -> None:
    text = "Tom has 3 boxes. [MASK*6]"
    end = tiny.codec.end_ids[0]
    assert end not in tiny.fill(text).tokens
    done = tiny.fill(text, recipe="full ban_eos=false")
    assert end in done.tokens
    assert done.generated == done.tokens[-6:], "an end token does not end a fill"


def test_generated_tokens_end_with_the_text() -> None:
    end, window = 2, (2, 2, 7, 8, 2, 9, 5, 2, 2, 6)
    assert generated_tokens(window, Layout(10), [end]) == (2,)
    suffixed = Layout(10, ((2, 7), (3, 8)))
    assert generated_tokens(window, suffixed, [end]) == (2, 2, 2), "an end token before a pin does not end the text"
    assert generated_tokens(window, Layout(10, ((4, 2), (5, 9))), [end]) == (2, 2, 7, 8, 5, 2)
    assert generated_tokens(window, suffixed, []) == (2, 2, 2, 9, 5, 2, 2, 6)
    assert generated_tokens(window, Layout(10, ((0, 2), (1, 2), (2, 7)), padding=2), []) == (8, 2, 9, 5, 2, 2, 6)


def test_a_completion_has_its_generated_tokens(tiny: foretell.Engine) -> None:
    done = tiny.generate("Tom has 3 boxes with 4 apples each.", max_new_tokens=24, suffix="The answer is")
    layout = tiny.template(max_new_tokens=24, suffix="The answer is").layout
    assert done.generated == generated_tokens(done.tokens, layout, tiny.codec.end_ids)
    assert done.generated[-1] in tiny.codec.end_ids


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("Tom has 3 boxes.", {}, r"the text has no mask to fill; write \[MASK\]"),
        ("[MASK*0]", {}, r"the number of masks in '\[MASK\*0\]' must be from 1 to"),
        ("[MASK*99999999999999999999]", {}, "the number of masks in"),
        ("[MASK*1000000][MASK*1000000]", {}, "the number of masks in the text must be from 1 to 1048576"),
        ("[MASK*300]", {}, "exceed the context of 256 tokens"),
        ("Tom [MASK]", {"max_new_tokens": 8}, "max_new_tokens=8 is for a window after a prompt"),
        ("Tom [MASK]", {"suffix": "The answer is"}, "suffix='The answer is' is for a window"),
        ("Tom [MASK]", {"seed": -1}, "seed must be"),
        (5, {}, "texts with masks are a string or a list of strings, got 5"),
    ],
)
def test_mistakes_are_named(tiny: foretell.Engine, text: Any, options: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        tiny.fill(text, **options)


def test_a_plain_prompt_is_not_filled(tiny: foretell.Engine) -> None:
    with pytest.raises(RequestError, match=r"filled by Engine\.fill"):
        tiny.generate(MaskedText("Tom [MASK]"))
    with pytest.raises(RequestError, match=r"filled by Engine\.fill"):
        tiny.stream_template("Tom", tiny.fill_template())

"""Regions that are looked for in the text: each rule by hand, batched, and what is not found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import foretell
from foretell.errors import RecipeError, RequestError
from foretell.layout import Layout, Request, lay_out
from foretell.policies.region.boxed import Boxed
from foretell.policies.region.delimiter import Delimiter
from foretell.policies.region.json import Json
from foretell.policies.region.pattern import Pattern
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.protocols import Region
from foretell.recipe import Recipe
from foretell.words import Words
from tests.helpers import PIECES, SOUGHT, WORDS, model_of, run

MASK, END = 0, 1
Row = str | list[str]


def found(region: Any, *rows: Row, pins: tuple[int, ...] = ()) -> list[str]:
    """What each row's region says. A row is its pieces, or a text with a bar between pieces; ? is a mask, $ an end."""
    cut = [row.split("|") if isinstance(row, str) else row for row in rows]
    vocabulary = ["?", "$", *dict.fromkeys(piece for row in cut for piece in row if piece not in "?$")]
    length = max(len(row) for row in cut)
    ids = [[vocabulary.index(piece) for piece in row] + [END] * (length - len(row)) for row in cut]
    layout = Layout(length, tuple((at, ids[0][at]) for at in pins))
    words = Words(vocabulary.__getitem__)
    state = lay_out([Request((3,), layout, Recipe(region=region))] * len(rows), MASK, (END,), words=words)
    state.draft = torch.tensor(ids)
    places = region(state)
    assert places.shape == (len(rows), length)
    return [
        "".join(piece for piece, inside in zip(row, place, strict=False) if inside)
        for row, place in zip(cut, places.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("region", "row", "answer"),
    [
        (Delimiter(), "So| the| answer| is| 4|2|.|\n|Next", " 42"),
        (Delimiter(), "The| answer| is| 3|.|5|.| Done", " 3.5"),
        (Delimiter(), "The| answer| is| 3|.| 4| more", " 3"),
        (Delimiter(), "The| answer| is|:| |7", "7"),
        (Delimiter(), "The| answer|\n|is| 7", " 7"),
        (Delimiter(), "The| answer| is| 7|$| junk", " 7"),
        (Delimiter(), "The| answer| is| 7|.| The| answer| is| 8|.", " 8"),
        (Delimiter(), "The| answer| is| 7|.| The| answer| is", ""),
        (Delimiter(), "The| answer| was| 7", ""),
        (Delimiter(), "The|?| is| 7", ""),
        (Delimiter(), "The| answer| is| 7|?", ""),
        (Delimiter(), "The| answer| is|?|?", ""),
        (Delimiter(), "The| answer| is 4|2 apples|.", " is 42 apples"),  # whole tokens
        (Delimiter("####"), "7|\n|####| 1|,|000", " 1,000"),
        (Delimiter("Answer:"), "Answer|:|\n|\n|B|\n|C", "B"),
        (Delimiter("答案是"), "答案|是|七|。|好", "七"),
        (Delimiter(length=1), "The| answer| is| 4|2| apples", " 4"),
        (Delimiter(length=1), "The| answer| is| 4|?", " 4"),
        (Delimiter(end="word"), "The| answer| is| 4|2| apples|.", " 42"),
        (Delimiter(end="word"), "The| answer| is| 4|2|,| so|.", " 42"),
        (Delimiter(end="line"), "The| answer| is| 4|.| Or| 5|\n|x", " 4. Or 5"),
        (Delimiter(end="text"), "The| answer| is| a|\n|b", " a\nb"),
        (Boxed(), r"It| is| \box|ed{|4|2|}|.", "42"),
        (Boxed(), r"\boxed|{|1|}| or| \boxed| {|\frac|{|1|}|{|2|}|}|}", r"\frac{1}{2}"),
        (Boxed(), r"\boxed{|\{|1|\}|}|}", r"\{1\}"),
        (Boxed(), r"\boxed{|1|}| or| \boxed{|2", ""),
        (Boxed(), r"\boxed{|?|}", ""),
        (Boxed(), r"\boxed{| |}", ""),
        (Boxed(), "boxed{|1|}", ""),
        (Pattern(r"\d+"), "1|2| and| 3|4| end", " 34"),
        (Pattern(r"x=(\d+)"), "x|=|1| y|=|2| x|=|3| y|=|4", "3"),
        (Pattern(r"(x|y)=(\d+)"), "x|=|1| y|=|2", " y"),
        (Pattern(r"(x|y)=(\d+)", group=2), "x|=|1| y|=|2", "2"),
        (Pattern(r"x=(\d+)", group=0), "x|=|1| y|=|2", "x=1"),
        (Pattern(r"x=(\d*)"), "x|=|1| x|=", "1"),
        (Pattern(r"\d+"), "none", ""),
        (Pattern(r"is (.+)"), "is| |?|.", ""),
        (Json(), '{"|answer|":| |42|}', "42"),
        (Json(), '```|json|\n|{"|answer|":| "|yes|"}|\n|```', "yes"),
        (Json(), '{"|answer|":| "|y|es| "|}', "yes"),
        (Json(), '{"|answer|":| |42', ""),
        (Json(), '{"|answer|":| |42|,| "|why|":| |?|}', ""),
        (Json(), '{"|answer|":| |?|}', ""),
        (Json(), '{"|reply|":| |42|}', ""),
        (Json(), '{"|answer|":| |1|,| "|answer|":| |2|}', "2"),
        (Json(), 'See| [|1|]| and| {|x|}|:| {"|answer|":| |3|}', "3"),
        (Json(), '{"|answer|":| |1|}| {"|answer|":| |2|}', "2"),
        (Json(), '{"|a|":| {"|answer|":| |1|}', ""),  # the outer object is not complete
        (Json("a.b.1"), '{"|x|":|0|,| "|a|":| {"|b|":| [|"p|",| "|q|",|0|]|}|}', "q"),
        (Json("0"), "[|true|,|2|]", "true"),
        (Json("a.b"), '{"|a|":|5|}', ""),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_found(region: Any, row: str, answer: str) -> None:
    assert found(region, row) == [answer]


def test_rows_are_apart() -> None:
    rows = "The| answer| is| 7|.", "The| answer| is|?", "The| answer| is| 1|2|.| Or| not", "nothing"
    assert found(Delimiter(), *rows) == [" 7", "", " 12", ""]
    assert found(Delimiter(), *reversed(rows)) == ["", " 12", "", " 7"]


def test_an_end_in_front_of_a_pinned_token_ends_nothing() -> None:
    assert found(Delimiter(), "The|$| answer| is| 7", pins=(2, 3)) == [" 7"]
    assert found(Delimiter(), "The|$| answer| is| 7") == [""]


@pytest.mark.parametrize(
    ("text", "marker", "answer"),
    [("Réponse: 東京。", "réponse", "東京"), ("答案：«x»\n", "答案", "«x»"), ("Ω = naïve 🙂", "ω =", "naïve 🙂")],
)
def test_tokens_of_single_bytes(text: str, marker: str, answer: str) -> None:
    """Every character beyond ASCII is several tokens, and all of them are found."""
    row = [bytes([byte]).decode("utf8", "surrogateescape") for byte in text.encode()]
    for region in (Delimiter(marker), Pattern(answer)):
        (spelled,) = found(region, row)
        assert spelled.encode("utf8", "surrogateescape").decode() == answer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("delimiter('')", r"marker must be a text that is not blank, got ''"),
        ("delimiter(' ')", r"not blank, got ' '"),
        ("delimiter(3)", r"region.marker must be a text in quotes, got 3"),
        ("delimiter(length=-1)", r"length must be at least 0, got -1"),
        ("delimiter(end=paragraph)", r"unknown region.end 'paragraph'"),
        ("pattern('(')", r"pattern '\(' is no regular expression: .*unterminated"),
        ("pattern('a(b)', 2)", r"group of the region's pattern 'a\(b\)' must be from 0 to 1, got 2"),
        ("pattern('\\d')", r"backslash that stands for nothing; write r'\\d'"),
        ("pattern('\\bx')", r"holds a backspace; where \\b was meant"),
        ("json('a..b')", r"path must be keys or numbers with dots between, got 'a..b'"),
        ("json('')", r"dots between, got ''"),
    ],
)
def test_bad_values_are_named(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        foretell.parse(f"full region={text}")


def test_without_words_there_is_no_text() -> None:
    with pytest.raises(RequestError, match=r"Boxed\(\) looks for the answer in the text; say how tokens are written"):
        lay_out([Request((3,), Layout(4), Recipe(region=Boxed()))], MASK)


def test_the_answer_is_found_in_the_proposals_of_the_step() -> None:
    """Not in those of the step before: a row can settle at its very first step, and commits what it was sure of."""
    settled = 0
    for seed in range(30):
        recipe = Recipe(block_length=4, region=Pattern(r"\d+"), stop=Prophet(Linear(-1, -1)))
        state, steps = run(model_of("toy", seed, vocab=12), [Request((1,), Layout(12), recipe)])
        said = "".join(PIECES[token] for token in state.window[0].tolist())
        if steps[0].answer.any():
            assert len(steps) == 1
            last = [at for at, token in enumerate(state.window[0].tolist()) if token in (7, 8)][-1]
            assert steps[0].answer[0, last], said
            settled += 1
    assert settled > 10


def test_what_is_never_found_never_settles() -> None:
    eager = Prophet(Linear(-1, -1))
    for region in (Delimiter("no such marker"), Boxed(), Json("no.such.key"), Pattern("no such thing")):
        requests = [Request((1,), Layout(9), Recipe(region=region, stop=eager), seed) for seed in range(3)]
        state, steps = run(model_of("toy", 1, vocab=4), requests)
        assert state.step.tolist() == [9, 9, 9]
        assert not any(step.settled.any() or step.answer.any() for step in steps)


def test_regions_differ_and_are_regions() -> None:
    draft = torch.tensor([[1, 3, 7, 10, 4, 8, 5, 6, 7, 5, 11, 1, 9, 1, 8, 11, 7, 9]])
    seen = set()
    for region in SOUGHT:
        one: Region = region
        assert one.sought
        state = lay_out([Request((1,), Layout(18), Recipe(region=one))], 0, (2,), words=WORDS)
        state.draft = draft
        seen.add(tuple(one(state)[0].tolist()))
    assert len(seen) >= 6

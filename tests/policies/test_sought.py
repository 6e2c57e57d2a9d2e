"""Regions that are looked for in the text: each rule by hand, batched, and what is not found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import foretell
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.trace import Trace
from foretell.errors import RecipeError, RequestError
from foretell.loop.decode import decode
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Beliefs, Inputs, Readout, Region
from foretell.loop.spelling import SpelledText, Spelling
from foretell.loop.view import StateView
from foretell.policies.cache.delayed import Delayed
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.off import Off
from foretell.policies.region.boxed import Boxed
from foretell.policies.region.delimiter import Delimiter
from foretell.policies.region.json import Json
from foretell.policies.region.pattern import Pattern
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.stop.stable import Stable
from foretell.policies.visible.near import Near
from foretell.recipes.recipe import Recipe
from tests.helpers import PIECES, SOUGHT, WORDS, model_of, network, run

MASK, END = 0, 1
Row = str | list[str]


def found(region: Any, *rows: Row, pins: tuple[int, ...] = ()) -> list[str]:
    """What each row's region says. A row is its pieces, or a text with a bar between pieces; ? is a mask, $ an end."""
    cut = [row.split("|") if isinstance(row, str) else row for row in rows]
    vocabulary = ["?", "$", *dict.fromkeys(piece for row in cut for piece in row if piece not in "?$")]
    length = max(len(row) for row in cut)
    ids = [[vocabulary.index(piece) for piece in row] + [END] * (length - len(row)) for row in cut]
    layout = Layout(length, tuple((at, ids[0][at]) for at in pins))
    words = Spelling(vocabulary.__getitem__)
    state = lay_out([Request((3,), layout, Recipe(region=region))] * len(rows), MASK, (END,), spelling=words)
    places = region(state.with_text(draft=torch.tensor(ids)))
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


def test_pinned_positions_are_no_part_of_an_answer_that_is_found() -> None:
    request = Request((3,), Layout(4, ((1, 7),)), Recipe(region=Pattern(r"\d+")))
    state = lay_out([request], MASK, (END,), spelling=WORDS)
    state = state.with_text(found=torch.tensor([[True, True, True, False]]))
    assert state.answer.tolist() == [[True, False, True, False]]


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
        ("delimiter('')", r"marker must be a string that is not blank, got ''"),
        ("delimiter(' ')", r"not blank, got ' '"),
        (f"delimiter('{'a' * 201}')", r"marker has 201 characters; at most 200 are allowed"),
        ("delimiter(3)", r"region.marker must be a text in quotes, got 3"),
        ("delimiter(length=-1)", r"length must be at least 0, got -1"),
        ("delimiter(end=paragraph)", r"unknown region.end 'paragraph'"),
        ("pattern('(')", r"pattern '\(' is not a regular expression: .*unterminated"),
        ("pattern('a(b)', 2)", r"group of the region's pattern 'a\(b\)' must be from 0 to 1, got 2"),
        ("pattern('\\d')", r"backslash with no meaning; write r'\\d'"),
        ("pattern('\\bx')", r"holds a backspace; if \\b was meant"),
        ("json('a..b')", r"path must be keys or list indices separated by dots, got 'a..b'"),
        ("json('')", r"separated by dots, got ''"),
    ],
)
def test_bad_values_are_named(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        foretell.parse(f"full region={text}")


def test_without_words_there_is_no_text() -> None:
    with pytest.raises(RequestError, match=r"Boxed\(\) finds the answer in the text; give spelling="):
        lay_out([Request((3,), Layout(4), Recipe(region=Boxed()))], MASK)


def test_the_answer_is_found_in_the_proposals_of_the_step() -> None:
    """Not in those of the step before: a row can settle at its very first step, and commits what it was sure of."""
    settled = 0
    for seed in range(30):
        recipe = Recipe(block_length=4, region=Pattern(r"\d+"), stop=Prophet(Linear(-1, -1)))
        state, steps = run(model_of("toy", seed, vocab=12), [Request((1,), Layout(12), recipe)])
        said = "".join(PIECES[token] for token in state.window[0].tolist())
        if steps[0].before.answer.any():
            assert len(steps) == 1
            last = [at for at, token in enumerate(state.window[0].tolist()) if token in (7, 8)][-1]
            assert steps[0].before.answer[0, last], said
            settled += 1
    assert settled > 10


def test_what_is_never_found_never_settles() -> None:
    eager = Prophet(Linear(-1, -1))
    for region in (Delimiter("no such marker"), Boxed(), Json("no.such.key"), Pattern("no such thing")):
        requests = [Request((1,), Layout(9), Recipe(region=region, stop=eager), seed) for seed in range(3)]
        state, steps = run(model_of("toy", 1, vocab=4), requests)
        assert state.step.tolist() == [9, 9, 9]
        assert not any(step.settled.any() or step.before.answer.any() for step in steps)


DRAFTS = {  # of one window, step by step: what the region "=" finds, and when it has stood for two comparisons
    "stands": (["a|=|7|7|. |a"] * 5, 2),
    "shrinks": (["a|=|7|7|. |a"] * 2 + ["a|=|7|. |. |a"] * 3, 4),
    "grows": (["a|=|7|. |a|a"] * 2 + ["a|=|7|7|a|. "] * 3, 4),
    "moves": (["a|=|7|. |a|8"] * 2 + ["a|=|7|. |=|8"] * 3, 4),
    "goes and comes": (["a|=|7|. |a|a", "a|a|7|. |a|a", *["a|=|7|. |a|a"] * 3], 4),
    "is never there": (["a|a|7|. |a|a"] * 5, None),
}


@pytest.mark.parametrize("stop", [Stable(2, float("inf")), Persistent(2)], ids=lambda stop: type(stop).__name__)
@pytest.mark.parametrize(("drafts", "fires"), DRAFTS.values(), ids=DRAFTS)
def test_an_answer_that_moved_has_changed(drafts: list[str], fires: int | None, stop: Any) -> None:
    """Even if each of its tokens has stood for long where it now stands."""
    pieces = ["?", "a", "$", "=", ". ", "7", "8"]
    tokens = torch.tensor([[pieces.index(piece) for piece in draft.split("|")] for draft in drafts])
    sure = torch.ones(tokens.shape)
    request = Request((1,), Layout(6), Recipe(region=Delimiter("=")))
    never = torch.full((6,), 5)
    trace = Trace(request, 0, (2,), tokens, sure, sure, sure, sure, never, settled=False, words=dict(enumerate(pieces)))
    assert trace.replay(stop) == fires


class Repeating:
    """A denoiser that proposes the drafts of a list, one after the other, and is sure of them."""

    mask_id = 0

    def __init__(self, drafts: list[list[int]]) -> None:
        self.drafts = iter(drafts)

    def __call__(self, inputs: Inputs) -> Readout:
        draft = torch.tensor(next(self.drafts))
        return lambda row, at: 9.0 * F.one_hot(draft[at], len(PIECES)).float()

    def new_cache(self, batch: int, length: int) -> KVStore:
        raise NotImplementedError


def test_the_live_rule_sees_it_move_too() -> None:
    """The second marker is in the last place to be filled, so that its proposal can still change."""
    before, after = [1, 7, 1, 7, 1, 1], [1, 7, 3, 7, 1, 1]
    for drafts, steps in (([after] * 6, 3), ([before] * 2 + [after] * 4, 5), ([before] * 6, 6)):
        recipe = Recipe(region=Delimiter("=", length=1), stop=Stable(2, float("inf")), score=Last())
        state, taken = run(Repeating(drafts), [Request((1,), Layout(6), recipe)])
        assert len(taken) == steps, drafts
        assert state.window[0].tolist() == drafts[-1]


@dataclass(frozen=True)
class Last:
    """The rightmost mask goes first."""

    def __call__(self, beliefs: Beliefs, state: StateView) -> Tensor:
        return state.positions.float().expand_as(state.draft)


def test_a_draft_that_has_not_changed_is_not_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[tuple[str, ...]] = []
    join = Spelling.join

    def counted(words: Spelling, pieces: Sequence[str]) -> SpelledText:
        texts.append(tuple(pieces))
        return join(words, pieces)

    monkeypatch.setattr(Spelling, "join", counted)
    words = Spelling(PIECES.__getitem__)
    recipe = Recipe(region=Pattern(r"\d+"), stop=Prophet(Linear(99, 99)))
    model = model_of("toy", 3, vocab=12)
    state = lay_out([Request((1,), Layout(24), recipe)], 0, (2,), spelling=words)
    steps = list(decode(model, state, recipe))
    assert len(steps) == 24
    assert 1 < len(texts) == len({tuple(step.draft[0].tolist()) for step in steps}) < 24


def test_what_is_remembered_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.loop.spelling.REMEMBERED", 2)
    rows = "The| answer| is| 7|.", "The| answer| is| 1|2|.", "no", "The| answer| is| 7|."
    assert found(Delimiter(), *rows) == [" 7", " 12", "", " 7"]
    words = Spelling(str)
    for key in (1, 2, 3, 1):
        assert words.find_once(key, partial(range, key)) == range(key)
    assert len(words._found) == 2


@pytest.mark.parametrize("cache", [Dual(), Delayed(0), Off(Near(2))], ids=str)
def test_what_is_watched_was_computed_in_this_step(cache: Any) -> None:
    """Wherever the answer is found; and a row settles only on what its whole text says now."""
    beyond = settled = 0
    for seed in range(24):
        region, stop = SOUGHT[seed % len(SOUGHT)], Prophet(Linear(3, 0))
        recipe = Recipe(block_length=4, cache=cache, region=region, stop=stop)
        model = network(seed, vocab=12)
        state = lay_out([Request((3, 4), Layout(16), recipe)], 0, (2,), spelling=WORDS)
        for step in decode(model, state, recipe):
            place = step.before.answer[0]
            assert step.beliefs.entropy[0, place].isfinite().all()  # of what was not read it is infinite
            proposed = state.with_text(draft=step.beliefs.tokens)
            assert torch.equal(region(proposed)[0], place)
            beyond += bool(place[(int(step.before.step[0]) // 4 + 1) * 4 :].any())
            if step.settled[0]:
                settled += 1
                assert torch.equal(region(state.with_text(draft=step.after.window))[0], place)
    assert beyond > 5
    assert settled > 2


def test_regions_differ_and_are_regions() -> None:
    draft = torch.tensor([[1, 3, 7, 10, 4, 8, 5, 6, 7, 5, 11, 1, 9, 1, 8, 11, 7, 9]])
    seen = set()
    for region in SOUGHT:
        one: Region = region
        assert one.sought
        state = lay_out([Request((1,), Layout(18), Recipe(region=one))], 0, (2,), spelling=WORDS)
        seen.add(tuple(one(state.with_text(draft=draft))[0].tolist()))
    assert len(seen) >= 6

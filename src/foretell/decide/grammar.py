"""Regular expressions as token automata, with outlines-core's index."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretell.engine.codec import Codec
from foretell.errors import RequestError, show
from foretell.extras import require_extra
from foretell.loop.slots import Edge, TokenAutomaton

# The index forgets some tokens after states that are final, so every text is followed by a mark, and only states after
# the mark are final.
MARK = "\x03"
LONGEST_REGEX = 10_000  # characters
REMEMBERED = 256  # grammars per vocabulary


class Spelled(NamedTuple):
    """The text of a token in one place."""

    token: int
    text: str


class Grammar:
    """What a slot may hold: texts that match a regular expression, or any text, padded with the end of text."""

    def __init__(self, automaton: TokenAutomaton, length: int, texts: dict[tuple[int, int], str] | None) -> None:
        self.automaton, self.length = automaton, length
        self._texts = texts  # by state and token; None: any text

    def decode(self, tokens: tuple[int, ...], codec: Codec) -> str:
        """Return the text of allowed tokens."""
        if self._texts is None:
            return codec.decode(tokens)
        states = self.automaton.sequence(tokens)
        assert states is not None, "a slot holds an allowed sequence"
        pieces = [self._texts.get(pair, "") for pair in zip((0, *states), tokens, strict=False)]
        return "".join(pieces).encode("utf8", "surrogateescape").decode("utf8")

    def log_probability(self, tokens: tuple[int, ...], logits: Tensor) -> float:
        """Return the log probability of some tokens among all that are allowed, with positions independent. [W, K]"""
        places = torch.searchsorted(self.automaton.tokens, torch.tensor(tokens))
        score = float(logits.double().gather(1, places[:, None]).sum())
        return score - self.automaton.log_sum(logits)


@dataclass(frozen=True, eq=False)
class TokenTexts:
    """How the tokens of a vocabulary are written, for an index, and the grammars that were made of them."""

    codec: Codec
    grammars: dict[tuple[str | None, int], Grammar] = field(default_factory=dict)

    @cached_property
    def pieces(self) -> list[Spelled]:
        """The text of every token that can be part of a text."""
        codec, spelling = self.codec, self.codec.spelling()
        special = {token for token, added in codec.tokenizer.get_added_tokens_decoder().items() if added.special}
        left_out = special | {codec.mask_id, *codec.end_ids}
        found = ((token, spelling.piece(token)) for token in sorted(set(codec.tokenizer.get_vocab().values())))
        return [
            Spelled(token, text) for token, text in found if token < codec.vocab_size and text and token not in left_out
        ]

    @cached_property
    def spaced(self) -> bool:
        return self.codec.spelling().spaced

    @cached_property
    def variants(self) -> list[Spelled]:
        """The texts of all tokens, numbered by their place here; bare words also with a blank before them."""
        if not self.spaced:
            return self.pieces
        bare = [Spelled(one.token, one.text.removeprefix("##")) for one in self.pieces]
        return bare + [
            Spelled(one.token, f" {one.text}")
            for one in self.pieces
            if not one.text[0].isspace() and not one.text.startswith("##")
        ]

    @cached_property
    def vocabulary(self) -> Any:
        """The vocabulary of an index: texts as bytes, and their places among `variants`."""
        require_extra("decide")
        from outlines_core import Vocabulary  # noqa: PLC0415  an extra

        mark = len(self.variants)
        # An index is refused if any state has no token. So every byte is one, and `_compile` drops these again.
        places = {bytes([byte]): [mark + 1] for byte in range(256)} | {MARK.encode(): [mark]}
        for place, one in enumerate(self.variants):
            places.setdefault(one.text.encode("utf8", "surrogateescape"), []).append(place)
        return Vocabulary(mark + 2, places)


_CODECS: dict[int, TokenTexts] = {}  # by the id of the codec, which stays its own while it is held here


def token_texts(codec: Codec) -> TokenTexts:
    """Return the texts of a codec's tokens. They are computed once."""
    known = _CODECS.get(id(codec))
    if known is None:
        known = _CODECS[id(codec)] = TokenTexts(codec)
    return known


def find_grammar(regex: str | None, most: int, codec: Codec) -> Grammar:
    """Return the grammar of texts of at most `most` tokens that match `regex` (or of all texts); it is cached.

    Raises RequestError if the expression is not supported, or if the vocabulary cannot spell such a text.
    """
    known = token_texts(codec).grammars
    if (regex, most) not in known:
        if len(known) >= REMEMBERED:
            known.clear()
        known[regex, most] = _any_text(most, codec) if regex is None else _match_regex(regex, most, codec)
    return known[regex, most]


def _any_text(length: int, codec: Codec) -> Grammar:
    words = [one.token for one in token_texts(codec).pieces]
    edges = [(0, token, 0) for token in words] + [(state, codec.end_ids[0], 1) for state in (0, 1) if codec.end_ids]
    return Grammar(TokenAutomaton(edges, [0, 1], codec.vocab_size), length, None)


def _match_regex(regex: str, most: int, codec: Codec) -> Grammar:
    edges, final, texts = _compile(regex, token_texts(codec))
    length = _length(edges, final, most, regex)
    end = codec.end_ids[0] if codec.end_ids else None
    padded = max(max(at, to) for at, _, to in edges) + 1
    pads = [] if end is None else [(state, end, padded) for state in (*sorted(final), padded)]
    return Grammar(TokenAutomaton([*edges, *pads], {*final, padded}, codec.vocab_size), length, texts)


def _compile(regex: str, texts: TokenTexts) -> tuple[list[Edge], set[int], dict[tuple[int, int], str]]:
    """Return edges between states from 0, the states in which a text may end, and the text of every edge."""
    if len(regex) > LONGEST_REGEX:
        raise RequestError(f"a regular expression may have {LONGEST_REGEX} characters, got {len(regex)}")
    vocabulary = texts.vocabulary
    from outlines_core import Index  # noqa: PLC0415  an extra, which `vocabulary` has checked

    try:
        index = Index(f"(?:{regex}){MARK}", vocabulary)
    except ValueError as error:
        raise RequestError(f"the regular expression {show(regex)} cannot be used: {error}") from error
    over, mark = set(index.get_final_states()), len(texts.variants)
    moves = {state: ways for state, ways in index.get_transitions().items() if state not in over}
    final = {state for state, ways in moves.items() if ways.get(mark) in over}
    start = index.get_initial_state()
    numbers = {start: 0} | {state: place for place, state in enumerate((s for s in moves if s != start), 1)}
    edges: dict[tuple[int, int], tuple[int, str]] = {}
    for state, ways in moves.items():
        for place, target in ways.items():
            if place < mark and target in numbers:
                _add(edges, numbers[state], texts.variants[place], numbers[target])
    useful = _useful(edges, {numbers[state] for state in final})
    kept = {pair: way for pair, way in edges.items() if way[0] in useful}
    if not kept:
        raise RequestError(
            f"the vocabulary cannot spell a text that matches {show(regex)}, except perhaps an empty one"
        )
    made = [(at, token, to) for (at, token), (to, _) in kept.items()]
    return made, {numbers[state] for state in final}, {pair: text for pair, (_, text) in kept.items()}


def _add(edges: dict[tuple[int, int], tuple[int, str]], state: int, one: Spelled, target: int) -> None:
    """Add an edge. If a bare word fits with and without a blank, a letter after another text takes the blank."""
    there = edges.get((state, one.token))
    blank = one.text.startswith(" ")
    if there is None or blank == (state != 0 and one.text.strip()[:1].isalpha()):
        edges[state, one.token] = target, one.text


def _useful(edges: dict[tuple[int, int], tuple[int, str]], final: set[int]) -> set[int]:
    """Return the states from which a text can end."""
    before: dict[int, set[int]] = {}
    for (state, _), (target, _) in edges.items():
        before.setdefault(target, set()).add(state)
    found, fresh = set(final), list(final)
    while fresh:
        more = before.get(fresh.pop(), set()) - found
        found |= more
        fresh += more
    return found


def _length(edges: list[Edge], final: set[int], most: int, regex: str) -> int:
    """Return the number of positions that the longest text of up to `most` tokens takes."""
    onward: dict[int, set[int]] = {}
    for state, _, target in edges:
        onward.setdefault(state, set()).add(target)
    reached, longest = {0}, 0
    for size in range(1, most + 1):
        reached = {target for state in reached for target in onward.get(state, ())}
        if reached & final:
            longest = size
    if not longest:
        raise RequestError(f"no text of up to {most} tokens matches {show(regex)}; allow more tokens")
    return longest


def escape(text: str) -> str:
    """Return a regular expression that matches a text and nothing else, in the dialect of the index."""
    return re.sub(r"([^A-Za-z0-9_ \"',:;<>=!@%&/`~-]|-)", lambda match: _escape_letter(match[0]), text)


def _escape_letter(letter: str) -> str:
    return rf"\{letter}" if letter.isascii() and letter.isprintable() else rf"\x{{{ord(letter):x}}}"

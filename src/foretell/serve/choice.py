"""One choice of a response: the windows that it is decoded in, the text so far, and why it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from foretell.engine.completion import Completion, count_tokens, cut_text, end_of
from foretell.engine.engine import Engine
from foretell.engine.options import RequestTemplate
from foretell.engine.outcome import Outcome
from foretell.engine.request import Layout, Request, derive_seed
from foretell.serve.mailbox import Scores

Reason = Literal["stop", "length"]
INCOMPLETE = "\ufffd"  # what a decoder writes for a part of a character


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of the text with its log probability; a pinned one was not predicted and has 0."""

    token: int
    chosen: float
    best: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Choice:
    """A text that grows window by window, up to `cap` tokens."""

    engine: Engine
    request: Request  # of the current window
    template: RequestTemplate
    cap: int  # not more than the context has room for
    alone: bool  # whether the decoder writes every token on its own
    shown: int | None = None  # positions of the window that are text; None: all. Fill in the middle hides its suffix
    window: int = 0  # number of the current window
    sent: str = ""  # text that was streamed
    reason: Reason | None = None  # why it ended; None: it has not
    completions: list[Completion] = field(default_factory=list)  # one per window that is done
    recipe: str = ""
    notes: list[str] = field(default_factory=list)
    _before: list[int] = field(default_factory=list)  # tokens of the text in earlier windows
    _scores: dict[int, tuple[float, tuple[tuple[int, float], ...]]] = field(default_factory=dict)  # by position
    _scored: list[TokenScore] = field(default_factory=list)  # of earlier windows
    _text: str = ""
    _tokens: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The finished text."""
        return self._text

    @property
    def count(self) -> int:
        """The number of tokens of the finished text."""
        return len(self._tokens)

    @property
    def scores(self) -> list[TokenScore]:
        """The tokens of the finished text, with log probabilities."""
        return self._scored[: self.count]

    @property
    def open_ended(self) -> bool:
        """Whether the text may continue in another window: nothing is pinned, and no place is the answer's."""
        layout = self.request.layout
        return not layout.pins and layout.answer is None

    def add_scores(self, scores: Scores) -> None:
        for position, chosen, best in zip(scores.positions, scores.chosen, scores.best, strict=True):
            self._scores[position] = chosen, best

    def stream(self, tokens: Sequence[int]) -> str:
        """Return the text that committed tokens of the current window add, and that cannot change any more."""
        text = self._decode([*self._before, *self._kept(tokens)][: self.cap])
        text = stable_text(text, alone=self.alone)
        cut, found = cut_text(text, self.template.stop_strings)
        return self._advance(cut if found is not None else hold_back(cut, self.template.stop_strings))

    def finish_stream(self) -> str:
        """Return the rest of the finished text."""
        return self._advance(self._text)

    def _advance(self, text: str) -> str:
        """Return what a text adds to what was streamed; nothing if it does not continue that."""
        if not text.startswith(self.sent):
            return ""
        delta, self.sent = text[len(self.sent) :], text
        return delta

    def finish_window(self, outcome: Outcome) -> Request | None:
        """Take a decoded window. Returns the request of the next one, or None if the text is finished."""
        self.completions.append(self.engine.complete(outcome, (), self.template))
        kept = self._kept(outcome.tokens)
        self._score(outcome, kept)
        whole = [*self._before, *kept]
        tokens = whole[: self.cap]
        text, found = cut_text(self._decode(tokens), self.template.stop_strings)
        ended = end_of(outcome.tokens, outcome.request.layout, self.engine.codec.end_ids) < len(outcome.tokens)
        if found is not None:
            self.reason = "stop"
        elif len(whole) > len(tokens):
            self.reason = "length"
        elif ended or not self.open_ended:
            self.reason = "stop"
        elif len(tokens) == self.cap:
            self.reason = "length"
        if self.reason is None:
            self._before, self._scores, self.request, self.window = whole, {}, self._follow(outcome), self.window + 1
            return self.request
        if found is not None:
            tokens = tokens[: count_tokens(text, tokens, self.engine.codec)]
        self._text, self._tokens = text, tuple(tokens)
        return None

    def _follow(self, outcome: Outcome) -> Request:
        """Return the request of the next window, which has the same length unless the context ends first."""
        request = outcome.request
        prompt = (*request.prompt, *outcome.tokens)
        length = min(request.layout.length, self.engine.context - len(prompt))  # not 0: the cap is at the end of it
        seed = derive_seed(self.template.seed, prompt)
        return replace(self.request, prompt=prompt, layout=Layout(length), seed=seed)

    def _kept(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of the text: up to its end, without end tokens."""
        codec, layout = self.engine.codec, self.request.layout
        if self.shown is not None:
            tokens, layout = tokens[: self.shown], Layout(self.shown)
        return [one for one in tokens[: end_of(tokens, layout, codec.end_ids)] if one not in codec.end_ids]

    def _score(self, outcome: Outcome, kept: Sequence[int]) -> None:
        """Note the log probabilities of a window's tokens, in the order of the text."""
        ends = self.engine.codec.end_ids
        places = [at for at, token in enumerate(outcome.tokens) if token not in ends][: len(kept)]
        self._scored += [
            TokenScore(token, *self._scores.get(at, (0.0, ()))) for at, token in zip(places, kept, strict=True)
        ]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.engine.codec.decode(tokens)


def stable_text(text: str, *, alone: bool) -> str:
    """Return the beginning of a text that more tokens cannot change.

    An incomplete character is held back, and, unless the decoder writes every token on its own, the last word.
    """
    text = text.rstrip(INCOMPLETE)
    if alone:
        return text
    return re.sub(r"\s*\S+\s*$", "", text)


def hold_back(text: str, stop_strings: Sequence[str]) -> str:
    """Return a text without the longest end that may be the beginning of a stop string."""
    longest = max((len(one) for one in stop_strings), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(one.startswith(text[-size:]) for one in stop_strings):
            return text[:-size]
    return text

"""The JSON formats of answers: chat completions and text completions differ, with the same content."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

from foretell.loop.spelling import Spelling, printable
from foretell.serve.choice import Choice, TokenScore
from foretell.serve.mailbox import Draft

SHOWN_DIGITS = 4


class Dialect(Protocol):
    """The shapes of one route."""

    route: str
    prefix: str  # of a response's id
    whole: str  # the object's name in a response
    part: str  # and in a chunk

    def choice(self, index: int, choice: Choice, spelling: Spelling, *, scored: bool) -> dict[str, Any]:
        """Return a finished choice."""

    def delta(self, index: int, text: str | None, reason: str | None, *, first: bool = False) -> dict[str, Any]:
        """Return a part of a choice; None is an empty one."""

    def scores(self, scores: Sequence[TokenScore], spelling: Spelling) -> dict[str, Any]:
        """Return log probabilities."""


class Chat:
    """`/v1/chat/completions`"""

    route, prefix = "/v1/chat/completions", "chatcmpl"
    whole, part = "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, choice: Choice, spelling: Spelling, *, scored: bool) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "finish_reason": choice.reason,
            "logprobs": self.scores(choice.scores, spelling) if scored else None,
        }

    def delta(self, index: int, text: str | None, reason: str | None, *, first: bool = False) -> dict[str, Any]:
        delta: dict[str, Any] = {} if text is None else {"content": text}
        return {"index": index, "delta": {"role": "assistant"} | delta if first else delta, "finish_reason": reason}

    def scores(self, scores: Sequence[TokenScore], spelling: Spelling) -> dict[str, Any]:
        def entry(token: int, score: float) -> dict[str, Any]:
            raw = spelling.piece(token).encode("utf8", "surrogateescape")  # a token may be a part of a character
            return {"token": raw.decode(errors="replace"), "logprob": score, "bytes": list(raw)}

        listed = [
            entry(one.token, one.chosen) | {"top_logprobs": [entry(token, score) for token, score in one.best]}
            for one in scores
        ]
        return {"content": listed, "refusal": None}


class Text:
    """`/v1/completions`"""

    route, prefix = "/v1/completions", "cmpl"
    whole, part = "text_completion", "text_completion"

    def choice(self, index: int, choice: Choice, spelling: Spelling, *, scored: bool) -> dict[str, Any]:
        return {
            "index": index,
            "text": choice.text,
            "finish_reason": choice.reason,
            "logprobs": self.scores(choice.scores, spelling) if scored else None,
        }

    def delta(self, index: int, text: str | None, reason: str | None, *, first: bool = False) -> dict[str, Any]:
        del first  # there is no role to announce
        return {"index": index, "text": text or "", "finish_reason": reason, "logprobs": None}

    def scores(self, scores: Sequence[TokenScore], spelling: Spelling) -> dict[str, Any]:
        texts = [_spell(one.token, spelling) for one in scores]
        offsets = [sum(map(len, texts[:at])) for at in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": [one.chosen for one in scores],
            "top_logprobs": [{_spell(token, spelling): score for token, score in one.best} for one in scores],
            "text_offset": offsets,
        }


def _spell(token: int, spelling: Spelling) -> str:
    return spelling.piece(token).encode("utf8", "surrogateescape").decode(errors="replace")


def usage_of(choices: Sequence[Choice], prompts: int) -> dict[str, int]:
    """Return the tokens of a request; a prompt with several answers counts once."""
    return count_usage(prompts, sum(choice.count for choice in choices))


def count_usage(prompt: int, made: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def describe_work(choice: Choice, queued: float, name: str | None) -> dict[str, Any]:
    """Return the object `foretell` of a response: what a finished choice took, and what was saved."""
    last = choice.completions[-1]
    total = {
        key: sum(getattr(one, key) for one in choice.completions) for key in ("steps", "budget", "saved", "forwards")
    }
    notes = dict.fromkeys(note for one in choice.completions for note in one.notes)
    return {
        **({} if name is None else {"run": name}),
        **total,
        "windows": len(choice.completions),
        "exit": last.exit,
        "gap": None if last.value is None else round(last.value, SHOWN_DIGITS),
        "measure": last.measure,
        "finish": last.finish,
        "answer": last.answer,
        "seconds": round(sum(one.seconds for one in choice.completions), SHOWN_DIGITS),
        "queued": round(queued, SHOWN_DIGITS),
        "recipe": choice.recipe,
        "notes": list(notes),
    }


def describe_draft(draft: Draft, choice: Choice, arrived: float) -> dict[str, Any]:
    """Return the object `draft` of a chunk."""
    frame, codec = draft.frame, choice.engine.codec
    value, bar = frame.gauge or (None, None)
    shown: dict[str, Any] = {
        "window": choice.window,
        "step": frame.step,
        "budget": frame.budget,
        "text": choice.engine.text(frame.tokens, choice.request.layout)[0],
        "filled": frame.filled,
        "fresh": frame.fresh,
        "answer": frame.answer,
        "pinned": frame.pinned,
        "gap": _round(value),
        "threshold": _round(bar),
        "measure": frame.measure,
        "settled": frame.settled,
        "seconds": round(draft.at - arrived, SHOWN_DIGITS),
    }
    if draft.confidence:
        ends = [token in codec.end_ids for token in frame.tokens]
        spelled = choice.engine.spelling.text(frame.tokens)
        pieces = [spelled.string[start:end] for start, end in pairwise([0, *spelled.ends])]
        shown |= {
            "tokens": ["" if end else printable(piece) for piece, end in zip(pieces, ends, strict=True)],
            "ends": ends,
            "confidence": [round(one, SHOWN_DIGITS) for one in draft.confidence],
        }
    return shown


def _round(value: float | None) -> float | None:
    """Return a number with few digits. One that is not finite is written as null."""
    return None if value is None else round(value, SHOWN_DIGITS)


def envelope(dialect: Dialect, name: str, model: str, *, part: bool) -> dict[str, Any]:
    """Return the fields that a response and its chunks have in common."""
    return {
        "id": name,
        "object": dialect.part if part else dialect.whole,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
    }

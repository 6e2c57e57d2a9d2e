"""Trajectories: what the model would have answered at every step, had it been asked to stop there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from foretell.decode import Step
from foretell.errors import RequestError
from foretell.layout import Request, lay_out
from foretell.policies.region.locate import locate_answer
from foretell.policies.stop.ask import ask
from foretell.protocols import Region, Stop
from foretell.state import EVER, DecodeState
from foretell.words import Words

STATISTICS = ("confidence", "gap", "margin", "entropy")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The decoding dynamics of one request: T steps of N positions.

    Implements `protocols.Beliefs` with time as the batch dimension, so that a stopping rule can be asked about all
    steps at once, without a model.
    """

    request: Request
    mask_id: int
    end_ids: tuple[int, ...]
    tokens: Tensor  # [T, N] what would have been emitted at each step
    confidence: Tensor  # [T, N]
    gap: Tensor  # [T, N]
    margin: Tensor  # [T, N]
    entropy: Tensor  # [T, N]
    filled_at: Tensor  # [N] step at which each position was filled, -1 if pinned, T if never
    settled: bool  # whether the stopping rule ended it
    words: Mapping[int, str] = field(default_factory=dict)  # how the tokens of this trace are written
    spaced: bool = False  # whether these are bare words

    def __len__(self) -> int:
        return len(self.tokens)

    def states(self, region: Region | None = None) -> DecodeState:
        """The state before every step, as T rows of one batch.

        An answer that is sought stands where the step itself has it, as in the loop.
        """
        chosen, times = region or self.request.recipe.region, torch.arange(len(self))
        if chosen.sought and not self.words:
            raise RequestError(f"{chosen} looks for the answer in the text, and this trace has no words")
        state = lay_out([self.request], self.mask_id, self.end_ids, words=self.spelling())
        state.keep([0] * len(self))
        state.step = times
        drafts = torch.cat([state.draft[:1], self.tokens])  # [T + 1, N]
        state.draft, state.unchanged = drafts[:-1], _stood(_changed(drafts))[:-1]
        done = (self.filled_at >= 0) & (self.filled_at < times[:, None])
        state.window[done] = self.tokens[-1].expand_as(done)[done]  # a filled position never changes again
        state.answer = locate_answer(chosen, replace(state, draft=self.tokens))
        moved = _changed(state.answer).any(dim=1)
        state.stayed = _stood(moved) if chosen.sought else torch.full_like(times, EVER)
        return state

    def spelling(self) -> Words:
        """How tokens are written inside a text."""
        words = self.words
        return Words(lambda token: words.get(token, f"<{token}>"), self.spaced)

    def answer(self, region: Region | None = None) -> Tensor:
        """The answer region at each step. [T, N]"""
        return self.states(region).answer

    def place(self) -> Tensor:
        """Where the answer stands: as laid out, or where the final text has it. [N]"""
        return self.answer()[-1 if self.request.recipe.region.sought else 0]

    def replay(self, stop: Stop, region: Region | None = None) -> int | None:
        """The step at which `stop` would have fired, or None."""
        fired = ask(stop, self, self.states(region)).settled
        return int(fired.int().argmax()) if fired.any() else None

    def committed(self, step: int) -> Tensor:
        """The text [N] that a commit at `step` emits."""
        return self.tokens[step]

    def first_match(self, tokens: Tensor | None = None, where: Tensor | None = None) -> int | None:
        """The first step whose draft spells `tokens` [N] (default: the final ones) at `where` (default: the answer)."""
        match = self._matches(tokens, where)
        return int(match.int().argmax()) if match.any() else None

    def last_change(self, where: Tensor | None = None) -> int:
        """The step from which the draft at `where` [N] (default: the answer) never changes again."""
        same = self._matches(None, where)
        return int((~same).nonzero().max()) + 1 if not same.all() else 0

    def _matches(self, tokens: Tensor | None, where: Tensor | None) -> Tensor:
        place = self.place() if where is None else where
        if not place.any():
            raise RequestError("this trace has no answer region; say where to look")
        wanted = self.tokens[-1] if tokens is None else tokens
        return (self.tokens[:, place] == wanted[place]).all(dim=1)


@dataclass(slots=True)
class Recorder:
    """Collects one request's steps out of a batch's."""

    request: Request
    rows: list[tuple[Tensor, ...]] = field(default_factory=list)
    settled: bool = False

    def observe(self, step: Step, row: int) -> None:
        """Copy what a step says of `row`; the step must be an observed one."""
        seen = (step.draft, *(getattr(step.beliefs, name) for name in STATISTICS), step.unmasked)
        self.rows.append(tuple(each[row].cpu().clone() for each in seen))
        self.settled |= bool(step.settled[row])

    def trace(self, mask_id: int, end_ids: tuple[int, ...]) -> Trace:
        tokens, confidence, gap, margin, entropy, unmasked = map(torch.stack, zip(*self.rows, strict=True))
        at = torch.where(unmasked.any(dim=0), unmasked.int().argmax(dim=0), len(unmasked))
        for offset, _ in self.request.layout.pins:
            at[offset] = -1
        return Trace(self.request, mask_id, end_ids, tokens, confidence, gap, margin, entropy, at, settled=self.settled)


def with_words(trace: Trace, words: Words) -> Trace:
    """The same trace, readable without the tokenizer."""
    used = {*trace.tokens.flatten().tolist(), *(token for _, token in trace.request.layout.pins)}
    return replace(trace, words={token: words.piece(token) for token in sorted(used)}, spaced=words.spaced)


def _changed(rows: Tensor) -> Tensor:
    """Where each of T rows [T, N] differs from the one before; the first one everywhere."""
    changed = torch.ones_like(rows, dtype=torch.bool)
    changed[1:] = rows[1:] != rows[:-1]
    return changed


def _stood(changed: Tensor) -> Tensor:
    """How many comparisons in a row found no change, by each of T times [T, ...]."""
    index = torch.arange(len(changed)).view(-1, *[1] * (changed.dim() - 1))
    return index - torch.where(changed, index, 0).cummax(dim=0).values

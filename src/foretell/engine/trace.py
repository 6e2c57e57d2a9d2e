"""Trajectories: what the model would have answered at every step, had it been asked to stop there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from foretell.engine.request import Request, lay_out
from foretell.errors import RequestError
from foretell.loop.checks import ask_region, ask_stop
from foretell.loop.decode import Step
from foretell.loop.parts import ALWAYS, Text
from foretell.loop.protocols import Region, Stop
from foretell.loop.spelling import Spelling
from foretell.loop.state import DecodeState

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
        region = region or self.request.recipe.region
        if region.sought and not self.words:
            raise RequestError(f"{region} finds the answer in the text, and this trace has no words")
        start = lay_out([self.request], self.mask_id, self.end_ids, spelling=self.spelling())
        state, times = start.keep([0] * len(self)), torch.arange(len(self))
        drafts = torch.cat([start.draft, self.tokens])  # [T + 1, N]
        done = (self.filled_at >= 0) & (self.filled_at < times[:, None])
        text = Text(
            window=torch.where(done, self.tokens[-1], state.window),  # a filled position never changes again
            draft=drafts[:-1],
            unchanged=_count_repeats(_changed(drafts))[:-1],
            found=state.text.found,
            answer_age=torch.full_like(times, ALWAYS),
            step=times,
        )
        state = replace(state, rows=replace(state.rows, region=region), text=text)
        if not region.sought:
            return state
        found = ask_region(region, state.with_text(draft=self.tokens))
        return state.with_text(found=found, answer_age=_count_repeats(_changed(found).any(dim=1)))

    def spelling(self) -> Spelling:
        """How tokens are written inside a text."""
        words = self.words
        return Spelling(lambda token: words.get(token, f"<{token}>"), self.spaced)

    def answer(self, region: Region | None = None) -> Tensor:
        """The answer region at each step. [T, N]"""
        return self.states(region).answer

    def place(self) -> Tensor:
        """Where the answer stands: as laid out, or where the final text has it. [N]"""
        return self.answer()[-1 if self.request.recipe.region.sought else 0]

    def replay(self, stop: Stop, region: Region | None = None) -> int | None:
        """The step at which `stop` would have fired, or None."""
        fired = ask_stop(stop, self, self.states(region)).settled
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
        """Copy what a step says about `row`."""
        seen = (step.draft, *(getattr(step.beliefs, name) for name in STATISTICS), step.filled)
        self.rows.append(tuple(each[row].cpu().clone() for each in seen))
        self.settled |= bool(step.settled[row])

    def trace(self, mask_id: int, end_ids: tuple[int, ...]) -> Trace:
        tokens, confidence, gap, margin, entropy, filled = map(torch.stack, zip(*self.rows, strict=True))
        at = torch.where(filled.any(dim=0), filled.int().argmax(dim=0), len(filled))
        for offset, _ in self.request.layout.pins:
            at[offset] = -1
        return Trace(self.request, mask_id, end_ids, tokens, confidence, gap, margin, entropy, at, settled=self.settled)


def with_words(trace: Trace, words: Spelling) -> Trace:
    """The same trace, readable without the tokenizer."""
    used = {*trace.tokens.flatten().tolist(), *(token for _, token in trace.request.layout.pins)}
    return replace(trace, words={token: words.piece(token) for token in sorted(used)}, spaced=words.spaced)


def _changed(rows: Tensor) -> Tensor:
    """Where each of T rows [T, N] differs from the one before; the first one everywhere."""
    changed = torch.ones_like(rows, dtype=torch.bool)
    changed[1:] = rows[1:] != rows[:-1]
    return changed


def _count_repeats(changed: Tensor) -> Tensor:
    """How many comparisons in a row found no change, by each of T times [T, ...]."""
    index = torch.arange(len(changed)).view(-1, *[1] * (changed.dim() - 1))
    return index - torch.where(changed, index, 0).cummax(dim=0).values

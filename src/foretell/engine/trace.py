"""Traces: what the model would have answered at every step if it had stopped there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from foretell.engine.request import Request, lay_out
from foretell.errors import RequestError, RowsFailedError
from foretell.loop.checks import ask_region, ask_stop
from foretell.loop.decode import Step
from foretell.loop.parts import ALWAYS, Text
from foretell.loop.protocols import Region, Stop
from foretell.loop.spelling import Spelling
from foretell.loop.state import DecodeState

STATISTICS = ("confidence", "gap", "margin", "entropy")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The drafts and beliefs of one request at every step: T steps of N positions.

    Implements `protocols.Beliefs` with time as the batch dimension, so that a stopping rule can judge all
    steps at once, without a model.
    """

    request: Request
    mask_id: int
    end_ids: tuple[int, ...]
    tokens: Tensor  # [T, N] the draft: the text that a commit at each step would have written
    confidence: Tensor  # [T, N]
    gap: Tensor  # [T, N]
    margin: Tensor  # [T, N]
    entropy: Tensor  # [T, N]
    filled_at: Tensor  # [N] step at which each position was filled, -1 if pinned, T if never
    settled: bool  # whether the stopping rule ended the decoding
    words: Mapping[int, str] = field(default_factory=dict)  # how the tokens of this trace are written
    spaced: bool = False  # whether tokens are bare words, with spaces between them

    def __len__(self) -> int:
        return len(self.tokens)

    def states(self, region: Region | None = None) -> DecodeState:
        """Return the state before every step, as T rows of one batch.

        If the answer is searched for in the text, each row has the region that its own step finds, as in the loop.
        """
        region = region or self.request.recipe.region
        if region.sought and not self.words:
            raise RequestError(
                f"{region} finds the answer in the text, and this trace does not say how tokens are written"
            )
        start = lay_out([self.request], self.mask_id, self.end_ids, spelling=self.spelling())
        state, times = start.keep([0] * len(self)), torch.arange(len(self))
        drafts = torch.cat([start.draft, self.tokens])  # [T + 1, N]
        done = (self.filled_at >= 0) & (self.filled_at < times[:, None])
        text = Text(
            window=torch.where(done, self.tokens[-1], state.window),  # a filled position never changes again
            draft=drafts[:-1],
            unchanged=_count_repeats(_find_changes(drafts))[:-1],
            found=state.text.found,
            answer_age=torch.full_like(times, ALWAYS),
            step=times,
        )
        state = replace(state, rows=replace(state.rows, region=region), text=text)
        if not region.sought:
            return state
        try:
            found = ask_region(region, state.with_text(draft=self.tokens))
        except RowsFailedError as failed:  # its rows are steps of this trace
            raise failed.first from failed
        return state.with_text(found=found, answer_age=_count_repeats(_find_changes(found).any(dim=1)))

    def spelling(self) -> Spelling:
        """Return how tokens are written inside a text."""
        words = self.words
        return Spelling(lambda token: words.get(token, f"<{token}>"), self.spaced)

    def answer(self, region: Region | None = None) -> Tensor:
        """Return the answer region at each step. [T, N]"""
        return self.states(region).answer

    def place(self) -> Tensor:
        """Return where the answer is: as declared, or as found in the final text. [N]"""
        return self.answer()[-1 if self.request.recipe.region.sought else 0]

    def replay(self, stop: Stop, region: Region | None = None) -> int | None:
        """Return the step at which `stop` would have stopped, or None."""
        fired = ask_stop(stop, self, self.states(region)).settled
        return int(fired.int().argmax()) if fired.any() else None

    def committed(self, step: int) -> Tensor:
        """Return the tokens [N] that a commit at `step` emits."""
        return self.tokens[step]

    def first_match(self, tokens: Tensor | None = None, where: Tensor | None = None) -> int | None:
        """Return the first step whose draft equals `tokens` [N] (default: final) at `where` [N] (default: answer)."""
        match = self._matches(tokens, where)
        return int(match.int().argmax()) if match.any() else None

    def last_change(self, where: Tensor | None = None) -> int:
        """Return the step from which the draft at `where` [N] (default: the answer) never changes again."""
        same = self._matches(None, where)
        return int((~same).nonzero().max()) + 1 if not same.all() else 0

    def _matches(self, tokens: Tensor | None, where: Tensor | None) -> Tensor:
        place = self.place() if where is None else where
        if not place.any():
            raise RequestError("this trace has no answer region; give `where`")
        wanted = self.tokens[-1] if tokens is None else tokens
        return (self.tokens[:, place] == wanted[place]).all(dim=1)


@dataclass(slots=True)
class Recorder:
    """Collects the steps of one request of a batch."""

    request: Request
    rows: list[tuple[Tensor, ...]] = field(default_factory=list)
    settled: bool = False

    def observe(self, step: Step, row: int) -> None:
        """Copy the results of a step for `row`."""
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
    """Return the same trace with its tokens' texts, readable without the tokenizer."""
    used = {*trace.tokens.flatten().tolist(), *(token for _, token in trace.request.layout.pins)}
    return replace(trace, words={token: words.piece(token) for token in sorted(used)}, spaced=words.spaced)


def _find_changes(rows: Tensor) -> Tensor:
    """Return where each of T rows [T, N] differs from the one before; the first one differs everywhere."""
    changed = torch.ones_like(rows, dtype=torch.bool)
    changed[1:] = rows[1:] != rows[:-1]
    return changed


def _count_repeats(changed: Tensor) -> Tensor:
    """Return the number of consecutive steps without a change, at each of T times. [T, ...]"""
    index = torch.arange(len(changed)).view(-1, *[1] * (changed.dim() - 1))
    return index - torch.where(changed, index, 0).cummax(dim=0).values

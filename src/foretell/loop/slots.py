"""Slots: runs of positions that may hold only certain token sequences, described by an automaton.

At every step, each token of a slot is scored by the best allowed sequence that holds it, given what is filled already.
So the proposals of all its masks form one allowed sequence, whatever part of it is filled first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foretell.errors import LayoutError

Edge = tuple[int, int, int]  # from a state, with a token, to a state


class TokenAutomaton:
    """Token sequences as paths: they start in state 0 and end in a final state.

    One object is shared by all requests with the same labels or grammar, so that their rows are scored together.
    """

    def __init__(self, edges: Iterable[Edge], final: Iterable[int], vocabulary: int) -> None:
        self.vocabulary = vocabulary  # number of logits per position
        table = torch.tensor(sorted(set(edges)), dtype=torch.long)
        if table.numel() == 0:
            raise LayoutError("a slot needs at least one allowed token")
        self.source, ids, self.target = table.unbind(1)  # [E] each
        # [K] ids in rising order; [E] places in `tokens`
        self.tokens, self.token = torch.unique(ids, return_inverse=True)
        if int(self.tokens[0]) < 0 or int(self.tokens[-1]) >= vocabulary:
            raise LayoutError(f"the tokens of a slot must be from 0 to {vocabulary - 1}, got {self.tokens.tolist()}")
        ends = torch.tensor(sorted(set(final)), dtype=torch.long)
        size = int(max(self.source.max(), self.target.max(), *ends[-1:])) + 1
        self.final = torch.zeros(size, dtype=torch.bool).index_fill(0, ends, True)  # [S]
        self._copies: dict[torch.device, TokenAutomaton] = {}

    def on(self, device: torch.device) -> TokenAutomaton:
        """Return this automaton with its tensors on a device. Copies are kept."""
        if self.source.device == device:
            return self
        if device not in self._copies:
            copy = object.__new__(TokenAutomaton)
            copy.vocabulary, copy._copies = self.vocabulary, {}
            for name in ("source", "token", "target", "tokens", "final"):
                setattr(copy, name, getattr(self, name).to(device))
            self._copies[device] = copy
        return self._copies[device]

    def rank(self, logits: Tensor, held: Tensor) -> Tensor:
        """Score every token at every position by the best allowed sequence that holds it. [R, W, K]

        `logits` [R, W, K] are those of `tokens`. `held` [R, W] are the token ids of filled positions; a mask is any
        other id. At a filled position the scores are those that a mask would have there. The best tokens of all masks
        form one allowed sequence, also if several sequences are equally good.
        """
        place = torch.searchsorted(self.tokens, held).clamp(max=len(self.tokens) - 1)
        filled = self.tokens[place] == held  # [R, W]
        given = torch.full_like(logits, -torch.inf).scatter(2, place[..., None], 0.0)
        evidence = torch.where(filled[..., None], given, logits)
        lead, trail = self._lead(evidence), self._trail(evidence)
        scores, states = [], torch.zeros(len(logits), 1, dtype=torch.long, device=logits.device)
        for at in range(logits.shape[1]):
            after = trail[at + 1][:, self.target]  # [R, E]
            ways = lead[at][:, self.source] + logits[:, at, self.token] + after
            best = _largest(ways, self.token, len(self.tokens))
            onward = torch.where(self.source == states, evidence[:, at, self.token] + after, -torch.inf)
            edge = onward.argmax(dim=1, keepdim=True)  # [R, 1]
            states = self.target[edge]
            scores.append(torch.where(filled[:, at, None], best, _prefer(best, self.token[edge])))
        return torch.stack(scores, dim=1)

    def _lead(self, evidence: Tensor) -> list[Tensor]:
        """Return, before every position and at the end, the best score with which each state is reached. [R, S]"""
        size = len(self.final)
        start = evidence.new_full((len(evidence), size), -torch.inf)
        start[:, 0] = 0.0
        found = [start]
        for at in range(evidence.shape[1]):
            ways = found[-1][:, self.source] + evidence[:, at, self.token]
            found.append(_largest(ways, self.target, size))
        return found

    def _trail(self, evidence: Tensor) -> list[Tensor]:
        """Return, before every position and at the end, the best score from each state to a final one. [R, S]"""
        size = len(self.final)
        found = [torch.where(self.final, 0.0, -torch.inf).to(evidence).expand(len(evidence), size)]
        for at in reversed(range(evidence.shape[1])):
            ways = found[-1][:, self.target] + evidence[:, at, self.token]
            found.append(_largest(ways, self.source, size))
        return found[::-1]

    def log_sum(self, logits: Tensor) -> float:
        """Return the log of the sum of exp(score) over all allowed sequences, a score being a sum of `logits` [W, K].

        With log probabilities, this is the log of the probability that the slot holds an allowed sequence.
        """
        values, size = logits.double(), len(self.final)
        reached = values.new_full((size,), -torch.inf)
        reached[0] = 0.0
        for at in range(len(values)):
            ways = reached[self.source] + values[at, self.token]
            top = ways.max()
            if not top.isfinite():
                return float(top)
            reached = values.new_zeros(size).index_add(0, self.target, (ways - top).exp()).log() + top
        return float(reached[self.final].logsumexp(0))

    def sequence(self, held: Sequence[int]) -> list[int] | None:
        """Return the states after each token of a sequence, or None if it is not allowed."""
        state, path = 0, []
        for token in held:
            state = self._steps.get((state, token), -1)
            path.append(state)
        return path if state >= 0 and bool(self.final[state]) else None

    @cached_property
    def _steps(self) -> dict[tuple[int, int], int]:
        ids = self.tokens[self.token].tolist()
        return dict(zip(zip(self.source.tolist(), ids, strict=True), self.target.tolist(), strict=True))


def _largest(ways: Tensor, into: Tensor, size: int) -> Tensor:
    """Return the largest of the `ways` [R, E] that lead into each of `size` places. [R, size]"""
    made = ways.new_full((len(ways), size), -torch.inf)
    return made.scatter_reduce(1, into.expand_as(ways), ways, "amax")


def _prefer(scores: Tensor, place: Tensor) -> Tensor:
    """Return the scores [R, K] with the one at `place` [R, 1] strictly above all others."""
    top = scores.amax(dim=1, keepdim=True)
    below = torch.minimum(scores, torch.nextafter(top, torch.full_like(top, -torch.inf)))
    return below.scatter(1, place, top)


@dataclass(frozen=True, slots=True)
class Slot:
    """Positions of a window that hold one of the sequences of an automaton."""

    offset: int
    length: int
    automaton: TokenAutomaton

    def __post_init__(self) -> None:
        if self.length < 1 or self.offset < 0:
            raise LayoutError(f"a slot of {self.length} positions at {self.offset} is not possible")
        nothing = torch.zeros(1, self.length, len(self.automaton.tokens))
        if not bool(self.automaton._trail(nothing)[0][0, 0].isfinite()):
            raise LayoutError(f"no allowed sequence of a slot has {self.length} tokens")

    @property
    def end(self) -> int:
        return self.offset + self.length


def single(tokens: Iterable[int], vocabulary: int) -> TokenAutomaton:
    """Return the automaton of sequences of one token."""
    return TokenAutomaton([(0, token, 1) for token in tokens], [1], vocabulary)

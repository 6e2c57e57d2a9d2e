"""Labels as token sequences: how the answers to a question are spelled, and the automaton that allows only them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.decide.answers import Floats
from foretell.engine.codec import Codec
from foretell.errors import RequestError, show
from foretell.loop.slots import TokenAutomaton

Sequences = tuple[tuple[int, ...], ...]
REMEMBERED = 100_000  # spellings, over all codecs


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one slot. A label may have several spellings, whose probabilities are added."""

    values: tuple[Any, ...]
    texts: tuple[str, ...]  # spellings
    sequences: Sequences  # one per spelling, all of the same length
    owner: tuple[int, ...]  # the place of each spelling's label in `values`
    automaton: TokenAutomaton

    @classmethod
    def of(cls, spellings: Sequence[tuple[Any, Sequence[str]]], before: str | None, codec: Codec) -> Labels:
        """Encode labels as they are written after the text `before`; None: each is a token of the vocabulary.

        Shorter ones are padded with the end of text.
        """
        found: dict[tuple[int, ...], int] = {}
        spelled = []
        for owner, (_, texts) in enumerate(spellings):
            for text in texts:
                tokens = (find_token(text, codec),) if before is None else tuple(encode_after(before, text, codec))
                if not tokens:
                    raise RequestError(f"the label {show(text)} has no tokens")
                if tokens not in found:
                    found[tokens] = owner
                    spelled.append(text)
                elif found[tokens] != owner:
                    pair = f"{show(spellings[found[tokens]][0])} and {show(spellings[owner][0])}"
                    raise RequestError(f"the labels {pair} have the same tokens, so an answer cannot distinguish them")
        values = tuple(value for value, _ in spellings)
        sequences = pad(list(found), codec)
        return cls(values, tuple(spelled), sequences, tuple(found.values()), make_trie(sequences, codec.vocab_size))

    def text_of(self, tokens: tuple[int, ...]) -> str:
        """Return the label that a slot holds, in its first spelling."""
        return self.texts[self.owner.index(self.owner[self.sequences.index(tokens)])]

    @property
    def length(self) -> int:
        return len(self.sequences[0])

    def scores(self, logits: Tensor) -> Floats:
        """Return the sum of the logits [W, K] of each spelling's tokens, as if positions were independent."""
        places = torch.searchsorted(self.automaton.tokens, torch.tensor(self.sequences))  # [L, W]
        return logits.double().T.gather(0, places).sum(dim=1).numpy()

    def probabilities(self, scores: Floats) -> Floats:
        """Return the probability of each label from its spellings' log scores, normalised."""
        weights = np.exp(scores - scores.max())
        made: Floats = np.zeros(len(self.values))
        np.add.at(made, np.array(self.owner), weights / weights.sum())
        return made


# By codec, text before and spellings. The id of a codec stays its own while the codec is held here.
_KNOWN: dict[tuple[int, str | None, str], tuple[Codec, Labels]] = {}


def find_labels(spellings: Sequence[tuple[Any, Sequence[str]]], before: str | None, codec: Codec) -> Labels:
    """Return `Labels.of` the arguments; it is cached, because every label needs a call of the tokenizer."""
    key = id(codec), before, repr(spellings)
    known = _KNOWN.get(key)
    if known is None:
        if sum(len(labels.texts) for _, labels in _KNOWN.values()) > REMEMBERED:
            _KNOWN.clear()
        known = _KNOWN[key] = codec, Labels.of(spellings, before, codec)
    return known[1]


def find_token(text: str, codec: Codec) -> int:
    """Return the token of the vocabulary that is stored as `text`."""
    token = codec.tokenizer.token_to_id(text)
    if token is None:
        raise RequestError(f"the vocabulary has no token {show(text)}")
    return token


def encode_before(before: str, codec: Codec) -> list[int]:
    """Return the tokens of the text before a slot, without the blanks at its end, which belong to the label."""
    return codec.encode(before.rstrip(" ")) if before.strip(" ") else []


def encode_after(before: str, text: str, codec: Codec) -> list[int]:
    """Return the tokens of `text` as the tokenizer writes them after `before`."""
    lead = encode_before(before, codec)
    together = codec.encode(before + text)
    return together[len(lead) :] if together[: len(lead)] == lead else codec.encode(text)


def pad(sequences: Sequence[tuple[int, ...]], codec: Codec) -> Sequences:
    """Return the sequences in one length, padded with the end of text, which is scored like any other token."""
    width = max(map(len, sequences))
    if not codec.end_ids and any(len(one) < width for one in sequences):
        raise RequestError("labels of different lengths are padded with an end of text, and this model has none")
    return tuple(one + codec.end_ids[:1] * (width - len(one)) for one in sequences)


@lru_cache(maxsize=4096)
def make_trie(sequences: Sequences, vocabulary: int) -> TokenAutomaton:
    """Return the automaton of some sequences of one length. Equal calls share one object, so that rows are grouped."""
    width, states = len(sequences[0]), dict[tuple[int, ...], int]()
    edges = []
    for one in sequences:
        for size in range(1, width + 1):
            target = 1 if size == width else states.setdefault(one[:size], len(states) + 2)
            edges.append((0 if size == 1 else states[one[: size - 1]], one[size - 1], target))
    return TokenAutomaton(edges, [1], vocabulary)

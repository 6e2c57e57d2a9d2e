"""The chain rule for labels of several tokens: one reading per inner node of their trie, all nodes in one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from foretell.decide.answers import Floats
from foretell.decide.labels import Labels, make_trie
from foretell.decide.reading import SlotReader
from foretell.engine.outcome import Outcome
from foretell.engine.request import Request
from foretell.loop.slots import Slot
from foretell.policies.stop.never import Never
from foretell.policies.transfer.quota import Quota

Prefix = tuple[int, ...]


def inner_nodes(labels: Labels) -> list[Prefix]:
    """Return all beginnings of labels that another token follows, the empty one first."""
    found = {one[:size]: None for size in range(labels.length) for one in labels.sequences}
    return list(found)


def ask_node(prefix: Prefix, labels: Labels, place: Slot, outcome: Outcome, mask: int) -> Request:
    """Return a request for one reading of the token after `prefix`, on the canvas that a decoding has left."""
    rests = tuple(dict.fromkeys(one[len(prefix) :] for one in labels.sequences if one[: len(prefix)] == prefix))
    start = place.offset + len(prefix)
    slot = Slot(start, labels.length - len(prefix), make_trie(rests, place.automaton.vocabulary))
    held = {
        at: token for at, token in enumerate(outcome.tokens) if token != mask and not place.offset <= at < place.end
    }
    held |= {place.offset + at: token for at, token in enumerate(prefix)}
    request = outcome.request
    layout = replace(request.layout, pins=tuple(sorted(held.items())), slots=(slot,))
    recipe = replace(request.recipe, steps=1, stop=Never(), transfer=Quota())
    return replace(request, layout=layout, recipe=recipe)


def chain_scores(labels: Labels, nodes: Mapping[Prefix, SlotReader]) -> Floats:
    """Return the log probability of each spelling: the sum over its tokens, each given those before it."""
    scores = []
    for one in labels.sequences:
        total = 0.0
        for size, token in enumerate(one):
            reader = nodes[one[:size]]
            place = int(torch.searchsorted(reader.slot.automaton.tokens, token))
            total += float(reader.log_probabilities[0, place])
        scores.append(total)
    return np.array(scores)

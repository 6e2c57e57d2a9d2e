"""What the plain decoders compute from the logits of one position."""

from __future__ import annotations

import math

Row = list[float]  # the logits of one position


def softmax(logits: Row) -> Row:
    top = max(logits)
    weights = [math.exp(z - top) for z in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def without(logits: Row, *tokens: int) -> Row:
    """The same logits with some tokens made impossible."""
    return [-math.inf if token in tokens else z for token, z in enumerate(logits)]


def cut(logits: Row, temperature: float, top_p: float, top_k: int) -> Row:
    """Dream's distribution: scaled, then the most likely tokens up to a share of `top_p`, then at most `top_k`."""
    scaled = [z / temperature for z in logits] if temperature > 0 else logits
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    probs, kept, share = softmax(scaled), [], 0.0
    for token in order:
        if share <= top_p:
            kept.append(token)
        share += probs[token]
    kept = kept[:top_k] if top_k else kept
    return softmax([z if token in kept else -math.inf for token, z in enumerate(scaled)])


def draw(probs: Row, u: float) -> int:
    """The token at the share `u` of the distribution, counted from the most likely one."""
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    share = 0.0
    for token in order:
        share += probs[token]
        if share > u:
            return token
    return order[0]


def gumbel(u: float) -> float:
    return -math.log(-math.log(u))

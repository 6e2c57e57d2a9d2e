"""Find out from the bodies of requests which of them share a batch, because the front has no model."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

# What decides the recipe and the length of the window. Values are compared, not understood: a replica refuses wrong
# ones. The number of steps is left out, because requests with different budgets share a batch.
GROUPING = (
    *("recipe", "layout", "block_length", "stop_rule"),
    *("temperature", "top_p", "top_k"),
    *("answer_suffix", "answer_length", "suffix"),
    *("questions", "response_format", "template", "think", "orders", "on_unsure"),
)
SAMPLING = ("temperature", "top_p", "top_k")
FAMILIES = {
    "/v1/chat/completions": "text",
    "/v1/completions": "text",
    "/v1/decisions": "decisions",
    "/v1/systemone": "decisions",
}  # route -> a name that routes with the same requests share


def find_group(path: str, raw: bytes) -> str:
    """Return the name of a request's group. Requests of one group share a batch if they meet on one replica."""
    family = FAMILIES.get(path, path)
    try:
        body = msgspec.json.decode(raw)
    except (ValueError, RecursionError):  # a replica refuses it, with the reason
        return family
    if not isinstance(body, dict):
        return family
    greedy = body.get("temperature") == 0  # then the other two have no effect
    chosen = {name: body[name] for name in GROUPING if body.get(name) is not None and not (greedy and name in SAMPLING)}
    if not chosen:
        return family
    return f"{family} {blake2b(msgspec.json.encode(chosen, order='deterministic'), digest_size=8).hexdigest()}"

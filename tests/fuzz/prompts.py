"""Prompts: texts, messages and token ids, alone and in lists, in two vocabularies."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch

from tests.fuzz import world
from tests.fuzz.mutate import mutate_text, mutate_value, odd_object, odd_text

WORDS = ("Tom has 3 boxes with 4 apples each.", "one two", "The answer is 7", "user: hi<|eot_id|>")
CHAT: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "Ann"},
    {"role": "assistant", "content": "yes"},
]
DTYPES = ("int64", "int32", "uint8", "int8", "float32", "float64", "bool", "complex64", "uint64")


def random_prompt(rng: Random) -> Any:
    """Return something that may be a prompt."""
    kind = rng.randrange(6)
    if kind == 0:
        return odd_text(rng)
    if kind == 1:
        return mutate_text(rng, rng.choice(WORDS))
    if kind == 2:
        messages = CHAT[: rng.randrange(1, 4)]
        return mutate_value(rng, messages) if rng.random() < 0.7 else messages
    if kind == 3:
        ids: list[Any] = [rng.randrange(300) for _ in range(rng.randrange(20))]
        return mutate_value(rng, ids) if rng.random() < 0.5 else ids
    if kind == 4:
        values = np.array([rng.randrange(-2, 300) for _ in range(rng.randrange(4))]).astype(rng.choice(DTYPES))
        shaped = values.reshape(rng.choice((values.shape, (1, *values.shape), (*values.shape, 1))))
        return shaped if rng.random() < 0.5 or shaped.dtype.name == "uint64" else torch.from_numpy(shaped)
    return odd_object(rng)


def run(rng: Random) -> None:
    engine = rng.choice((world.engine, world.engine, world.word_engine))()
    given: Any = random_prompt(rng)
    if rng.random() < 0.2:
        given = [random_prompt(rng) for _ in range(rng.randrange(3))]
    asked: dict[str, Any] = {"max_new_tokens": 3, "steps": 2}
    if rng.random() < 0.3:
        asked["chat"] = rng.random() < 0.5
    made: Any = engine.generate(given, **asked)
    for done in made if isinstance(made, list) else [made]:
        world.check_completion(engine, engine.template(**asked), done)

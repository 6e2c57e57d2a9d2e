"""Prompts: texts, with and without masks, messages and token ids, alone, in lists and in files."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import torch

from foretell.engine.prompt_files import read_prompts
from foretell.evaluation.benchmarks.fill import Fill
from foretell.evaluation.benchmarks.prompts import Prompts, format_prompts
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, mutate_text, mutate_value, odd_object, odd_text

WORDS = ("Tom has 3 boxes with 4 apples each.", "one two", "The answer is 7", "user: hi<|eot_id|>")
MASKED = (
    "Tom has [MASK] boxes.",
    "[MASK*3]",
    "one [MASK] two [MASK*2]",
    "The <|mdm_mask|> is [MASK*12]!",
    "[MASK*99999999]",
)
CHAT: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "Ann"},
    {"role": "assistant", "content": "yes"},
]
LINES: list[Any] = [
    {"prompt": WORDS[0], "id": "a", "answer": "12", "label": "sums"},
    {"messages": CHAT, "id": 7},
    {"prompt": WORDS[1], "answer": 3.5},
    WORDS[2],
    {"text": MASKED[2], "answer": ["a", 5]},
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


def _fill(rng: Random) -> None:
    """Masks in a text."""
    texts: list[Any] = [odd_object(rng), rng.choice(MASKED), mutate_text(rng, rng.choice(MASKED))]
    engine, given = rng.choice((world.engine, world.word_engine))(), rng.choice((*texts, texts[1:], texts[::-1]))
    made: Any = engine.fill(given, recipe=rng.choice(("full", "threshold", "full block_length=2")))
    for done in made if isinstance(made, list) else [made]:
        assert engine.model.mask_id not in done.tokens, "a mask is left"
        assert all(fill in done.text for fill in done.fills)


def run(rng: Random) -> None:
    if rng.random() < 0.2:
        _fill(rng)
        return
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


def run_files(rng: Random) -> None:
    if rng.random() < 0.15:
        format_prompts([rng.choice((*LINES, random_prompt(rng), odd_object(rng))) for _ in range(rng.randrange(1, 4))])
        return
    with world.scratch() as folder:
        path = folder / rng.choice(("prompts.jsonl", "prompts.txt", "prompts"))
        chosen = [rng.choice(LINES) for _ in range(rng.randrange(1, 5))]
        path.write_text("".join(json.dumps(line) + "\n" for line in chosen))
        if rng.random() < 0.95:
            damage_file(rng, path)
        found = read_prompts(path)
        assert found
        if rng.random() < 0.3:
            rng.choice((Prompts(), Fill())).examples(path, rng.choice((None, 1, 2)), 0)
        engine, prompts = world.engine(), [one.prompt for one in found[:2]]
        engine.generate(prompts, max_new_tokens=2, steps=1)

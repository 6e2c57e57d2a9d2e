"""Files of prompts: JSON lines and plain text."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from foretell.engine.prompt_files import read_prompts
from foretell.evaluation.benchmarks.prompts import Prompts, format_prompts
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, odd_object
from tests.fuzz.prompts import CHAT, WORDS, random_prompt

LINES: list[Any] = [
    {"prompt": WORDS[0], "id": "a", "answer": "12"},
    {"messages": CHAT, "id": 7},
    {"prompt": WORDS[1], "answer": 3.5},
    WORDS[2],
]


def run(rng: Random) -> None:
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
            Prompts().examples(path, rng.choice((None, 1, 2)), 0)
        engine, prompts = world.engine(), [one.prompt for one in found[:2]]
        engine.generate(prompts, max_new_tokens=2, steps=1)

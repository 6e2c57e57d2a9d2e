"""Options of `generate`: valid and odd values, in any combination, on sound and on broken models."""

from __future__ import annotations

from random import Random
from typing import Any

from foretell.engine.options import ALIASES, REMASKINGS, GenerateOptions
from tests.fuzz import world
from tests.fuzz.mutate import odd_object, odd_text
from tests.fuzz.recipes import random_text

NAMES = (*sorted(GenerateOptions.__annotations__), "trace", "batch_size", "streamer")
OTHERS = (*ALIASES, "factor", "eps", "dual_cache", "constraints", "num_return_sequences")


def _valid(rng: Random, name: str) -> Any:
    whole, share = rng.randrange(1, 10), rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    judge = f"judge(path={str(world.judge_file())!r})"
    files = (str(world.certificate_file()), world.certificate_file())
    rules = ("sure", "never", judge, *files, "persistent(2)")
    values: dict[str, Any] = {
        "recipe": rng.choice((random_text(rng), *files)) if name == "recipe" else "full",
        "settings": rng.choice(("steps=3", "stop=sure guidance=0.5", "", None)),
        "layout": rng.choice(("short", "answer", None)),
        "remasking": rng.choice(sorted(REMASKINGS)),
        "suffix": rng.choice(("is", "", "\n", "é")),
        "pins": {rng.randrange(9): rng.choice((5, "a", "ab"))},
        "stop_at_eos": rng.random() < 0.5,
        "stop": rng.choice(rules),
        "stop_strings": rng.choice(("a", ["a", "\n"], ("x",))),
        "chat": rng.random() < 0.5,
        "trace": rng.random() < 0.5,
        "streamer": None,
    }
    fractions = ("threshold", "entropy_bound", "temperature", "top_p", "cfg_scale")
    return values.get(name, share if name in fractions else whole)


def random_options(rng: Random, odd: float) -> dict[str, Any]:
    """Return keyword arguments, each with an odd value with probability `odd`."""
    made: dict[str, Any] = dict(rng.choice((world.WINDOW, world.ANSWERED)))
    for name in rng.sample(NAMES, rng.randrange(1, 6)):
        made[name] = odd_object(rng) if rng.random() < odd else _valid(rng, name)
    if rng.random() < 0.05:
        made[rng.choice((*OTHERS, odd_text(rng)))] = odd_object(rng)
    return made


def run(rng: Random) -> None:
    engine = world.broken_engine(rng) if rng.random() < 0.15 else rng.choice((world.engine, world.double_engine))()
    given = random_options(rng, odd=rng.choice((0.0, 0.3, 0.6)))
    prompt: Any = rng.choice(("one two", [1, 2, 3], [{"role": "user", "content": "hi"}]))
    if rng.random() < 0.1:
        given.pop("batch_size", None)
        given.pop("streamer", None)
        for _ in engine.stream(prompt, **given):
            pass
        return
    done = engine.generate(prompt, **given)
    options = {name: value for name, value in given.items() if name not in ("trace", "batch_size", "streamer")}
    world.check_completion(engine, engine.template(**options), done)

"""Certified recipes, with and without a judge, in both formats, and the files of judges."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from random import Random
from typing import Any

from foretell.engine.certificate import _digest, read_certificate
from foretell.policies.stop.judge import Judge
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, mutate_value, odd_number, odd_text, write_json

RULES = ("plain.json", "mixed.json", "judged.json", "old.json")


def _reseal(rng: Random, data: bytes) -> bytes:
    """Change a rule and write the right digest, which would otherwise be all that is ever checked."""
    rule = mutate_value(rng, json.loads(data))
    if isinstance(rule, dict):
        with suppress(ValueError):  # a number that Python refuses to print
            rule["sha256"] = _digest({name: value for name, value in rule.items() if name != "sha256"})
    return write_json(rng, rule)


def run(rng: Random) -> None:
    with world.scratch() as parent:
        folder = parent / "rules"
        shutil.copytree(world.certificate_file().parent, folder)
        name = rng.choice(RULES)
        if rng.random() < 0.9:
            judge = name == "judged.json" and rng.random() < 0.5
            damage_file(
                rng, folder / ("judge.json" if judge else name), None if judge else rng.choice((None, *[_reseal] * 3))
            )
        certificate = read_certificate(folder / name)
        certificate.save(folder / "again.json")
        assert read_certificate(folder / "again.json") == certificate
        _decode(rng, {rng.choice(("stop", "recipe")): folder / name})


def run_judge(rng: Random) -> None:
    with world.scratch() as folder:
        path = folder / "judge.json"
        shutil.copy(world.judge_file(), path)
        if rng.random() < 0.9:
            damage_file(rng, path)
        rule = Judge(str(path))
        if rng.random() < 0.2:
            rule = Judge(rng.choice((str(path), odd_text(rng))), bar=odd_number(rng))
        _decode(rng, {"stop": rule})


def _decode(rng: Random, chosen: dict[str, Any]) -> None:
    windows = (world.WINDOW, world.ANSWERED, *([{}] if "recipe" in chosen else []))
    engine, given = world.engine(), rng.choice(windows) | chosen
    world.check_completion(engine, engine.template(**given), engine.generate("one", **given))

"""Certificates of stopping rules, with and without a judge, and the files of judges."""

from __future__ import annotations

import shutil
from random import Random
from typing import Any

from foretell.engine.certificate import read_certificate
from foretell.policies.stop.judge import Judge
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, odd_number, odd_text

FILES = ("plain.json", "plain.json", "judged.json", "judge.json")


def run(rng: Random) -> None:
    with world.scratch() as parent:
        folder = parent / "rules"
        shutil.copytree(world.certificate_file().parent, folder)
        if rng.random() < 0.9:
            damage_file(rng, folder / rng.choice(FILES))
        for name in ("plain.json", "judged.json"):
            certificate = read_certificate(folder / name)
            certificate.save(folder / "again.json")
            assert read_certificate(folder / "again.json") == certificate
            _decode(rng, folder / name)


def run_judge(rng: Random) -> None:
    with world.scratch() as folder:
        path = folder / "judge.json"
        shutil.copy(world.judge_file(), path)
        if rng.random() < 0.9:
            damage_file(rng, path)
        rule = Judge(str(path))
        if rng.random() < 0.2:
            rule = Judge(rng.choice((str(path), odd_text(rng))), bar=odd_number(rng))
        _decode(rng, rule)


def _decode(rng: Random, stop: Any) -> None:
    engine, given = world.engine(), rng.choice((world.WINDOW, world.ANSWERED)) | {"stop": stop}
    world.check_completion(engine, engine.template(**given), engine.generate("one", **given))

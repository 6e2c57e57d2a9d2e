"""Certificates of stopping rules, with and without a judge."""

from __future__ import annotations

import shutil
from random import Random

from foretell.engine.certificate import read_certificate
from tests.fuzz import world
from tests.fuzz.mutate import damage_file


def run(rng: Random) -> None:
    with world.scratch() as parent:
        folder = parent / "rules"
        shutil.copytree(world.certificate_file().parent, folder)
        damage_file(rng, folder / rng.choice(("plain.json", "plain.json", "judged.json", "judge.json")))
        for name in ("plain.json", "judged.json"):
            certificate = read_certificate(folder / name)
            certificate.save(folder / "again.json")
            assert read_certificate(folder / "again.json") == certificate
            given = rng.choice((world.WINDOW, world.ANSWERED))
            engine = world.engine()
            done = engine.generate("one", stop=folder / name, **given)
            world.check_completion(engine, None, engine.template(stop=folder / name, **given), done)

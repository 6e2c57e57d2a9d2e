"""Files of judges, the learned stopping rules."""

from __future__ import annotations

import shutil
from random import Random

from foretell.policies.stop.judge import Judge
from tests.fuzz import world
from tests.fuzz.mutate import damage_file, odd_number, odd_text


def run(rng: Random) -> None:
    with world.scratch() as folder:
        path = folder / "judge.json"
        shutil.copy(world.judge_file(), path)
        if rng.random() < 0.9:
            damage_file(rng, path)
        rule = Judge(str(path))
        if rng.random() < 0.2:
            rule = Judge(rng.choice((str(path), odd_text(rng))), bar=odd_number(rng))
        engine = world.engine()
        given = world.ANSWERED | {"steps": 3}
        done = engine.generate("one", stop=rule, **given)
        world.check_completion(engine, None, engine.template(stop=rule, **given), done)

"""Audit logs: reading, showing, exporting, and continuing them."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from random import Random

from foretell.certify.audit import Entry, open_log, read_log
from foretell.certify.climb import climb, export
from foretell.certify.losses import find_loss
from foretell.cli.audit import as_json, describe_event, groups_table, rungs_table, summarise
from foretell.engine.prompt_files import FilePrompt
from tests.fuzz import world
from tests.fuzz.mutate import damage_file


@cache
def log_file() -> Path:
    """A climb on four requests after a pilot of two, and some more that are made up."""
    path = world.certificate_file().parent / "climb.jsonl"
    continue_log(path, 6)
    with open_log(path) as log:
        assert log.state is not None
        rungs = len(log.state.header.rungs)
        for number in range(60):
            label = (None, "short", "long")[number % 3]
            log.add(Entry(number, f"k{number}", label, log.state.serving(label), [0.0] * rungs, [8, *[4] * rungs]))
    return path


def continue_log(path: Path, requests: int) -> None:
    engine = world.engine()
    with open_log(path) as log:
        template = engine.template(**world.ANSWERED)
        made = climb(engine, log, template, find_loss("answer"), 0.2, 0.8, explore=0.9, pilot=2)
        for number in range(requests):
            for task in made.plan(FilePrompt(number, f"one {number}")):
                ((_, done),) = engine.generate_iter([(task.one.prompt, task.template)], errors="return")
                made.record(task, done)


def run(rng: Random) -> None:
    with world.scratch() as folder:
        path = folder / "climb.jsonl"
        shutil.copy(log_file(), path)
        if rng.random() < 0.9:
            damage_file(rng, path)
        if rng.random() < 0.2:
            continue_log(path, 3)
        state = read_log(path)
        for event in state.events:
            describe_event(state, event)
        summarise(state)
        as_json(state)
        groups_table(state)
        rungs_table(state)
        export(state).save(folder / "tuned.json")

"""All kinds of cases, and how many of each are run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tests.fuzz import (
    audits,
    certificates,
    checkpoints,
    http,
    options,
    prompts,
    recipes,
    results,
    traces,
    training,
    world,
)
from tests.fuzz.runner import Run


class Kind(NamedTuple):
    run: Run
    cases: int  # of `make fuzz`
    slice: int  # of `make test`


KINDS = {
    "recipes": Kind(recipes.run, 4000, 150),
    "options": Kind(options.run, 4000, 150),
    "prompts": Kind(prompts.run, 3000, 150),
    "prompt_files": Kind(prompts.run_files, 2500, 150),
    "traces": Kind(traces.run, 2500, 80),
    "certificates": Kind(certificates.run, 2000, 60),
    "audits": Kind(audits.run, 1500, 50),
    "judges": Kind(certificates.run_judge, 1500, 60),
    "checkpoints": Kind(checkpoints.run, 2000, 50),
    "results": Kind(results.run, 1500, 50),
    "training": Kind(training.run, 1000, 40),
    "http": Kind(http.run, 5000, 100),
}
CASES = sum(kind.cases for kind in KINDS.values())


def share_out(kinds: Sequence[str], cases: int | None) -> dict[str, int]:
    """Return the number of cases per kind: the usual ones, or `cases` in the same proportions, rounded up."""
    usual = {name: KINDS[name].cases for name in kinds}
    if cases is None:
        return usual
    return {name: -(-count * cases // sum(usual.values())) for name, count in usual.items()}


def prepare() -> None:
    """Make every valid input, so that workers start with them."""
    torch.set_num_threads(1)
    for make in (world.engine, world.word_engine, world.double_engine, world.certificate_file, world.trace_file):
        make()
    world.expected_text()
    for make_folder in (audits.log_file, checkpoints.folders, results.folder, training.folder):
        make_folder()

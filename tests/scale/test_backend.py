"""Evaluations on a pool, and copies of engines: the same results as in one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import foretell
from foretell import load_traces
from foretell.certify.calibrate import calibrate
from foretell.certify.decode_store import DecodeStore
from foretell.engine.copies import EngineCopy
from foretell.engine.engine import Engine
from foretell.errors import ForetellError, ModelError, RequestError
from foretell.evaluation.records import Record, parts
from foretell.evaluation.run import Evaluation, PreparedEvaluation, evaluate
from foretell.scale import Pool
from foretell.workers import Needs
from tests.cli.conftest import WORDS
from tests.scale.fakes import FakeCluster

RECIPES = ("full steps=6", "prophet stop.tau=staged(high=2,mid=2,low=1)")
LAYOUT: dict[str, Any] = {"max_new_tokens": 12, "block_length": 6, "suffix": "The answer is", "answer_length": 2}


def pool_on(cluster: FakeCluster) -> Pool:
    return Pool("here", connect=cluster)


def repeatable(records: list[Record]) -> list[Record]:
    plain: dict[str, Any] = {"seconds": 0.0, "wall": 0.0, "columns_computed": 0, "value": None}
    return sorted((replace(one, **plain) for one in records), key=lambda one: one.key)


COUNT = 18  # results of `asked`


def asked(checkpoint: Path, out: Path, **changes: Any) -> Evaluation:
    out.mkdir(exist_ok=True)
    source = out.parent / "prompts.jsonl"
    prompts = [f"{name} has {number} boxes." for number in (2, 3, 4) for name in ("Tom", "Ann", "Adam")]
    source.write_text("".join(f"{json.dumps(one)}\n" for one in prompts))
    how: dict[str, Any] = {"source": source, "batch_size": 2, "options": LAYOUT, **changes}
    return Evaluation(str(checkpoint), "prompts", RECIPES, out, **how)


@pytest.mark.parametrize("trace", [False, True])
def test_an_evaluation_on_a_pool_is_that_of_one_process(checkpoint: Path, tmp_path: Path, trace: bool) -> None:
    alone = evaluate(asked(checkpoint, tmp_path / "alone", trace=trace))
    cluster = FakeCluster(3, lambda worker, nth: (worker, nth) == (1, 2))
    seen: list[Record] = []
    there = evaluate(asked(checkpoint, tmp_path / "pool", trace=trace, pool=pool_on(cluster)), seen.append)
    assert len(cluster.workers) == 4, "three, and one for the one that was lost"
    plain = [[replace(one, trace=None, trace_index=None) for one in repeatable(side)] for side in (alone, there)]
    assert plain[0] == plain[1]
    assert repeatable(seen) == repeatable(there)
    assert all(0 < one.wall <= one.seconds * 10 for one in there)
    if trace:
        for one in there:
            assert one.trace is not None
            assert one.trace_index is not None
            assert len(load_traces(tmp_path / "pool" / one.trace)[one.trace_index]) == one.steps


def test_an_evaluation_that_was_interrupted_goes_on(checkpoint: Path, tmp_path: Path) -> None:
    fragile = FakeCluster(2, lambda worker, nth: nth == (3 if worker < 2 else 2))
    what = asked(checkpoint, tmp_path)
    with pytest.raises(ForetellError, match="workers of the pool were lost"):
        evaluate(replace(what, pool=pool_on(fragile)))
    (part,) = parts(tmp_path)
    kept = part.read_text().splitlines()
    assert 0 < len(kept) < COUNT
    done = evaluate(replace(what, pool=pool_on(FakeCluster())))
    assert part.read_text().splitlines()[: len(kept)] == kept
    assert len(done) == len(part.read_text().splitlines()) == COUNT
    again = FakeCluster()
    evaluate(replace(what, pool=pool_on(again)))
    assert again.workers == [], "nothing was missing"


def test_recipes_of_tune_and_of_calibrate_share_the_workers(checkpoint: Path, tmp_path: Path) -> None:
    cluster = FakeCluster(2)
    what = replace(asked(checkpoint, tmp_path / "tune"), recipes=("full",), pool=pool_on(cluster))
    stores = [
        DecodeStore(PreparedEvaluation.prepare(replace(what, pool=pool, out=tmp_path / f"tune-{at}")))
        for at, pool in enumerate([None, what.pool])
    ]
    for recipe in ("full", "full steps=6", "full steps=3"):
        here, there = (store.records(recipe, store.bench.examples) for store in stores)
        assert repeatable(here) == repeatable(there)
    assert len(cluster.workers) == 2
    how: dict[str, Any] = {
        "prompts": what.source,
        "risk": 0.5,
        "confidence": 0.6,
        "options": LAYOUT,
        "family": "stable",
    }
    pools: list[Any] = [None, what.pool]
    made = [
        calibrate(str(checkpoint), work=tmp_path / str(at), against="full steps=6", pool=pool, **how)
        for at, pool in enumerate(pools)
    ]
    assert made[0].certificate.recipe == made[1].certificate.recipe
    assert made[0].search.trials == made[1].search.trials
    assert len(cluster.workers) == 2, "also for the recipe to compare with"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 2}, "workers=2 are processes of this machine, and a pool has its own workers"),
        ({"device": "cuda:0,cuda:1"}, "each worker of a pool has one device, got 'cuda:0,cuda:1'"),
    ],
)
def test_a_pool_has_workers_of_its_own(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        asked(tmp_path, tmp_path / "out", pool=pool_on(FakeCluster()), **changes)


# Copies of engines.


def test_a_copy_decodes_the_same(checkpoint: Path) -> None:
    engine = foretell.load(checkpoint)
    copy = EngineCopy.of(engine)()
    assert (
        copy.generate(WORDS, recipe="prophet", **LAYOUT).tokens
        == engine.generate(WORDS, recipe="prophet", **LAYOUT).tokens
    )
    assert copy.backend == engine.backend


def test_a_copy_needs_a_thread_per_cpu_or_a_gpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = foretell.load(checkpoint)
    assert EngineCopy.of(engine).needs == Needs(1)
    engine.threads = 3
    assert EngineCopy.of(engine).needs == Needs(3)
    used: list[int | None] = []
    monkeypatch.setattr(Engine, "use_threads", lambda self, threads: used.append(threads))
    EngineCopy.of(engine)()
    assert used == [3]
    engine.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
    assert EngineCopy.of(engine).needs == Needs(1, 1)
    assert EngineCopy.of(engine).device == "cuda"


def test_a_bundled_model_and_one_of_the_hub_have_names_that_other_machines_know(
    checkpoint: Path, tmp_path: Path
) -> None:
    tiny = EngineCopy.of(foretell.load("tiny"))
    assert tiny.name == "tiny"
    elsewhere = replace(tiny, model="/no/such/folder")
    assert elsewhere().fingerprint == tiny.sha256
    folder = tmp_path / "models--own--er" / "snapshots" / "0123abc"
    shutil.copytree(checkpoint, folder)
    assert EngineCopy.of(foretell.load(folder)).name == "own/er@0123abc"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"sha256": "0" * 64},
            r"the checkpoint in .* differs from that of the machine that started the command: its sha",
        ),
        (
            {"versions": ("0.0.1", "2.0")},
            r"the machine that started the command has 0\.0\.1 and 2\.0; install the same versions",
        ),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used here"),
    ],
)
def test_a_copy_that_would_decode_other_tokens_is_an_error(
    checkpoint: Path, change: dict[str, Any], message: str
) -> None:
    opener: Callable[[], Engine] = replace(EngineCopy.of(foretell.load(checkpoint)), **change)
    with pytest.raises((ModelError, RequestError), match=message):
        opener()

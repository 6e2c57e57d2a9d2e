"""Batches on a Ray cluster: the same results as one process, also if workers, machines or the driver are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.evaluation.catalogue import benchmark_named
from foretell.evaluation.records import Record
from foretell.workers import Needs
from tests.scale.conftest import CPUS, TwoNodes, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
RECIPE = "swift"
HALF = 500  # of the thousand prompts: by then both workers are decoding
TIMES = ("seconds", "value")  # a value is a sum of floats, whose last digits depend on the batch


def write_prompts(path: Path, count: int) -> Path:
    problems = benchmark_named("word").examples(None, count, 0)
    lines = [json.dumps({"id": one.id, "prompt": one.prompt}) for one in problems]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "foretell", *map(str, words)]


def timeless(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def generate(prompts: Path, out: Path, *more: object) -> None:
    subprocess.run(command("generate", "tiny", "--file", prompts, "--recipe", RECIPE, "--out", out, *more), check=True)


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def workers_on(node: Any) -> list[int]:
    """Return the process ids of the pool's workers on a node: children of its raylet."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            name = folder.joinpath("cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if parent == raylet and name.startswith((b"ray::Worker", b"ray::MapWorker")):
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a thousand prompts and what one process makes of them."""
    folder = tmp_path_factory.mktemp("alone")
    generate(write_prompts(folder / "prompts.jsonl", 1000), folder / "out.jsonl")
    return folder


def start(nodes: TwoNodes, prompts: Path, out: Path) -> subprocess.Popen[str]:
    ray = ("--ray", nodes.address, "--actors", 2)
    words = command("generate", "tiny", "--file", prompts, "--recipe", RECIPE, "--out", out, *ray)
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def finish(driver: subprocess.Popen[str]) -> str:
    """Wait until the command is done, and return what it said."""
    _, said = driver.communicate(timeout=300)
    assert driver.returncode == 0, said
    return said


def test_a_killed_worker_changes_nothing(nodes: TwoNodes, alone: Path, tmp_path: Path) -> None:
    """A thousand prompts on two machines; one worker is killed half-way."""
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    with start(nodes, alone / "prompts.jsonl", out) as driver:
        wait_for(lambda: lines_in(part) > HALF)
        (victim,) = workers_on(nodes.second)
        os.kill(victim, signal.SIGKILL)
        said = finish(driver)
    assert "a worker was lost, and what it was decoding is decoded again" in said
    assert timeless(out) == timeless(alone / "out.jsonl")


def test_a_killed_driver_resumes_and_a_killed_machine_changes_nothing(
    nodes: TwoNodes, alone: Path, tmp_path: Path
) -> None:
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    with start(nodes, alone / "prompts.jsonl", out) as driver:
        wait_for(lambda: lines_in(part) > HALF // 5)
        driver.kill()
    kept = part.read_text().splitlines()[1:-1]
    with start(nodes, alone / "prompts.jsonl", out) as driver:
        wait_for(lambda: lines_in(part) > HALF)
        assert len(workers_on(nodes.second)) == 1
        nodes.kill_second()
        said = finish(driver)
    assert "results of an interrupted run found" in said
    assert "a worker was lost" in said
    assert {*kept} <= {*out.read_text().splitlines()}, "with their times, so they were not decoded again"
    assert timeless(out) == timeless(alone / "out.jsonl")


def test_room_is_counted_by_machine(nodes: TwoNodes) -> None:
    from foretell.scale.actors import RayCluster

    cluster = RayCluster(nodes.address)
    assert [cluster.room(Needs(cpus)) for cpus in (1, 3, CPUS, CPUS + 1)] == [2 * CPUS, 2, 2, 0]
    assert cluster.room(Needs(1, 1)) == 0


def comparable(records: list[Record]) -> list[Record]:
    plain: dict[str, Any] = {
        "seconds": 0.0,
        "wall": 0.0,
        "columns_computed": 0,
        "value": None,
        "trace": None,
        "trace_index": None,
    }
    return sorted((replace(one, **plain) for one in records), key=lambda one: one.key)


def test_an_evaluation_and_a_calibration_are_those_of_one_process(nodes: TwoNodes, tmp_path: Path) -> None:
    from foretell.scale import Pool

    asked: dict[str, Any] = {"limit": 60, "trace": True}
    recipes = ("full", RECIPE)
    with Pool(nodes.address, 2) as pool:
        there = foretell.evaluate(foretell.Evaluation("tiny", "sudoku", recipes, tmp_path / "a", pool=pool, **asked))
        rule = foretell.calibrate("tiny", task="choice", limit=40, risk=0.2, work=tmp_path / "c", pool=pool)
        here = foretell.evaluate(foretell.Evaluation("tiny", "sudoku", recipes, tmp_path / "b", **asked))
        alone = foretell.calibrate("tiny", task="choice", limit=40, risk=0.2, work=tmp_path / "d")
    assert comparable(there) == comparable(here)
    assert all(one.trace for one in there)
    assert (rule.certificate.certified, rule.certificate.recipe) == (True, alone.certificate.recipe)


def test_a_pipeline_of_ray_data_survives_a_killed_worker(nodes: TwoNodes, alone: Path, tmp_path: Path) -> None:
    """A thousand rows, Parquet in and out, with columns of the user's own; a worker is killed half-way."""
    import pyarrow.parquet as pq
    import ray

    from foretell.scale import Generate

    rows = [json.loads(line) for line in (alone / "prompts.jsonl").read_text().splitlines()]
    rows = [row | {"mine": at} for at, row in enumerate(rows)]
    ray.data.from_items(rows, override_num_blocks=1).write_parquet(str(tmp_path / "in"))

    class Fragile(Generate):
        """Kills its own process once, after the batch with the row in the middle."""

        def __call__(self, batch: Any) -> Any:
            done = super().__call__(batch)
            flag = tmp_path / "killed"
            if HALF in list(batch["mine"]) and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return done

    options = {"model": "tiny", "recipe": RECIPE}
    pool = ray.data.ActorPoolStrategy(size=2)
    made = ray.data.read_parquet(str(tmp_path / "in")).repartition(8)
    made = made.map_batches(Fragile, fn_constructor_kwargs=options, batch_size=40, compute=pool, num_cpus=1)
    made.write_parquet(str(tmp_path / "out"))
    assert (tmp_path / "killed").exists()
    found = sorted(pq.read_table(tmp_path / "out").to_pylist(), key=lambda row: row["mine"])
    expected = timeless(alone / "out.jsonl")
    assert [row["mine"] for row in found] == list(range(len(expected)))
    assert {row["error"] for row in found} == {None}
    assert [{name: row[name] for name in expected[0]} for row in found] == expected

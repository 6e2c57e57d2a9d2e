"""Decodings are made when they are asked for, once, and come back in the order of the examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretell.certify.decode_store import LONGEST_NAME, DecodeStore, ignore_progress
from foretell.errors import RecipeError, RequestError
from foretell.evaluation.records import Record, read_records
from foretell.evaluation.run import Watch, run
from tests.certify.planted import OPEN, prepare_bench

FAST = "full transfer=threshold(0.5)"


class Stages:
    """Collects the title and number of decodings of every stage, and the records that follow."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.done: list[Record] = []

    def __call__(self, title: str, total: int) -> Watch:
        self.begun.append((title, total))
        return self.done.append


@pytest.fixture(scope="module")
def stages() -> Stages:
    return Stages()


@pytest.fixture(scope="module")
def store(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, stages: Stages) -> DecodeStore:
    return DecodeStore(prepare_bench(checkpoint, tmp_path_factory.mktemp("work"), 10, batch_size=4), stages)


def test_only_what_is_missing_is_decoded(store: DecodeStore, stages: Stages) -> None:
    examples = store.bench.examples
    first = store.records(FAST, [examples[6], examples[2]], "two")
    assert [one.id for one in first] == [examples[6].id, examples[2].id]
    assert (stages.begun, len(stages.done)) == ([("two", 2)], 2)
    more = store.records(FAST, examples[2:7])
    assert stages.begun[1:] == [(FAST, 3)], "the recipe is the title of a stage without one"
    assert [one.id for one in more] == [one.id for one in examples[2:7]]
    assert (more[4], more[0]) == (first[0], first[1])
    assert {one.id for one in stages.done} == {one.id for one in examples[2:7]}
    store.records(FAST, examples[3:6])
    assert (len(stages.begun), len(stages.done)) == (2, 5), "nothing is decoded twice"
    folder = store.prepare(FAST).evaluation.out
    assert len(read_records(folder)) == 5
    assert len({folder, store.prepare(FAST, trace=True).evaluation.out, store.prepare("full").evaluation.out}) == 3


def test_traces_are_decodings_too(store: DecodeStore, stages: Stages) -> None:
    examples, before = store.bench.examples, len(stages.begun)
    cases = store.cases("full", [examples[8], examples[1]], "traced")
    assert [case.example for case in cases] == [examples[8], examples[1]]
    assert [case.record.id for case in cases] == [examples[8].id, examples[1].id]
    assert all(len(case.trace) == case.record.steps for case in cases)
    found = store.records("full", [examples[1], examples[4], examples[8]])
    assert stages.begun[before:] == [("traced", 2), ("full", 1)], "records are taken from the traced decodings"
    assert found[0] == cases[1].record
    assert [one.id for one in found] == [examples[place].id for place in (1, 4, 8)]
    again = store.cases("full", examples[1:5])
    assert stages.begun[before + 2 :] == [("full", 3)], "but a decoding without a trace is no case"
    assert [case.example for case in again] == examples[1:5]


def test_a_recipe_is_refused_before_it_is_decoded(store: DecodeStore, stages: Stages) -> None:
    before = len(stages.begun)
    with pytest.raises(RecipeError, match="threshhold"):
        store.records("full transfer=threshhold(0.5)", store.bench.examples)
    assert len(stages.begun) == before


def test_recipes_are_resolved_with_the_layout(store: DecodeStore) -> None:
    assert store.resolve("full") == f"full block_length={OPEN['block_length']}"
    assert store.resolve("full block_length=none") == "full block_length=none"


def test_long_recipes_have_short_and_distinct_folders(store: DecodeStore) -> None:
    long = "full transfer=threshold(0.5) stop=prophet(clock=tokens,tau=staged(high=7.5,mid=5.0,low={}))"
    recipes = [long.format(low) for low in (2.5, 2.25)]
    names = [store.prepare(one).evaluation.out.name for one in recipes]
    assert len({*names}) == 2, "they differ only after the part that the name holds"
    assert names[0][:LONGEST_NAME] == names[1][:LONGEST_NAME]
    assert all(name.isascii() and "/" not in name and len(name) == LONGEST_NAME + 9 for name in names)


def test_progress_may_be_ignored() -> None:
    assert ignore_progress("title", 3)(None) is None  # type: ignore[arg-type]


def test_wanted_examples_only(store: DecodeStore, tmp_path: Path, checkpoint: Path) -> None:
    """`run` decodes the wanted examples; the others come later, into the same folder."""
    bench = prepare_bench(checkpoint, tmp_path, 6)
    seen: list[Record] = []
    ids = [one.id for one in bench.examples]
    found = run(bench, seen.append, {ids[1], ids[4]})
    assert {one.id for one in found} == {one.id for one in seen} == {ids[1], ids[4]}
    assert run(bench, seen.append, {ids[1]}) == found
    assert run(bench, seen.append, set()) == found
    assert len(seen) == 2
    assert {one.id for one in run(bench, seen.append)} == {*ids}
    assert len(seen) == 6
    assert bench.select(None) is bench
    assert [one.id for one in bench.select({ids[3], ids[0]}).examples] == [ids[0], ids[3]]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"given": [f"Ann has {n} pens." for n in range(2, 12)]}, "examples_sha256: "),
        ({"options": {**OPEN, "max_new_tokens": 18}}, "max_new_tokens: 12 before, 18 now"),
        ({"dtype": "bfloat16"}, 'dtype: "float32" before, "bfloat16" now'),
        ({"model": "tiny"}, "model_sha256: "),
    ],
)
def test_decodings_of_another_evaluation_are_refused(
    checkpoint: Path, tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    """Also if everything that is asked for is stored, so that nothing has to be decoded."""
    given: dict[str, Any] = {"model": checkpoint, "folder": tmp_path, "given": 10}
    first = DecodeStore(prepare_bench(**given))
    first.records(FAST, first.bench.examples)
    first.cases("full", first.bench.examples)
    other = DecodeStore(prepare_bench(**{**given, **changed}))
    for ask in (lambda: other.records(FAST, other.bench.examples), lambda: other.cases("full", other.bench.examples)):
        with pytest.raises(RequestError, match="holds another evaluation") as raised:
            ask()
        assert says in str(raised.value)
    more = DecodeStore(prepare_bench(**{**given, "given": 12}))
    assert len(more.records(FAST, more.bench.examples)) == 12, "more examples extend it"

"""Texts with masks are evaluated as `Engine.fill` fills them, and replayed as they were decoded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import foretell
from foretell.certify.outcomes import find_exits, read_traces, replay_rules
from foretell.certify.replay import Study, gather_cases
from foretell.certify.train_judge import LOOKS, collect_features
from foretell.engine.masked_text import MaskedText
from foretell.errors import RequestError
from foretell.evaluation.benchmarks.fill import Fill
from foretell.evaluation.manifest import examples_hash
from foretell.evaluation.records import Record
from foretell.evaluation.run import Evaluation, PreparedEvaluation, evaluate, run
from foretell.loop.protocols import Stop
from foretell.policies.stop.features import features
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.stop.stable import Stable
from foretell.recipes.text import format_value

LINES: list[Any] = [
    {"text": "Tom has [MASK] boxes.", "id": "short", "label": "boxes"},
    {"prompt": "[MASK*40] apples", "id": "long"},  # a window of 64
    "He eats [MASK*4] apples each.",
    {"text": "Tom has 3 boxes with [MASK*2] apples each. He eats [MASK].", "answer": ["4 red", 5]},
    {"text": "[MASK*35] boxes with apples", "answer": "2"},
    {"text": "Ann has 2 boxes. " * 12 + "[MASK*3]"},  # after a prompt
]
RULE = Prophet(Linear(0.9, 0.3))
RECIPES = ("full", f"full stop={format_value(RULE)}", "threshold transfer.value=0.3")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "masked.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture(scope="module")
def done(
    checkpoint: Path, file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreparedEvaluation, dict[tuple[str, str], Record]]:
    out = tmp_path_factory.mktemp("fills")
    bench = PreparedEvaluation.prepare(
        Evaluation(str(checkpoint), "fill", RECIPES, out, source=file, trace=True, batch_size=3)
    )
    return bench, {record.key: record for record in run(bench)}


@pytest.fixture(scope="module")
def studied(done: tuple[PreparedEvaluation, dict[tuple[str, str], Record]]) -> Study:
    return gather_cases(done[0], list(done[1].values()))


def repeatable(records: list[Record]) -> list[Record]:
    times: dict[str, Any] = {"seconds": 0.0, "wall": 0.0, "columns_computed": None, "value": None}
    return sorted((replace(one, trace=None, trace_index=None, **times) for one in records), key=lambda one: one.key)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_text_is_filled_as_the_engine_fills_it(
    recipe: str, done: tuple[PreparedEvaluation, dict[tuple[str, str], Record]]
) -> None:
    bench, records = done
    for example in bench.examples:
        record = records[recipe, example.id]
        assert isinstance(example.prompt, MaskedText)
        alone = bench.engine.fill(example.prompt.text, recipe=recipe)
        assert (record.text, record.answer, record.steps) == (alone.text, "".join(alone.fills), alone.steps)
        assert record.tokens == alone.generated
        assert len(alone.generated) == alone.response_tokens
    assert [one.data["label"] for one in bench.examples] == ["boxes", *[None] * 5]
    assert {records["full", one.id].budget for one in bench.examples} == {1, 3, 4, 35, 40}


def test_a_recipe_is_that_of_a_fill(done: tuple[PreparedEvaluation, dict[tuple[str, str], Record]]) -> None:
    engine, first = done[0].engine, done[0].examples[0]
    for text in (*RECIPES, "full block_length=8 ban_eos=false"):
        given = replace(done[0].evaluation, recipes=(text,))
        (recipe,) = PreparedEvaluation.prepare(given, engine).recipes
        assert recipe.template(engine, first, 0).recipe == engine.fill_template(recipe=text).recipe
    bench = PreparedEvaluation.prepare(replace(given, recipes=("full", text), options={"block_length": 16}), engine)
    assert [one.template(engine, first, 0).recipe.block_length for one in bench.recipes] == [16, 8]


def test_workers_and_later_runs_give_the_same(
    checkpoint: Path, file: Path, tmp_path: Path, done: tuple[PreparedEvaluation, dict[tuple[str, str], Record]]
) -> None:
    what = Evaluation(str(checkpoint), "fill", RECIPES[:2], tmp_path, source=file, batch_size=2, workers=2)
    wanted = repeatable([one for one in done[1].values() if one.recipe in RECIPES[:2]])
    assert repeatable(evaluate(what)) == wanted
    parts = sorted(tmp_path.glob("results-*.jsonl"))
    assert len(parts) == 2
    parts[1].unlink()
    seen: list[Record] = []
    assert repeatable(evaluate(replace(what, workers=1), seen.append)) == wanted
    assert 0 < len(seen) < len(wanted)


def test_a_replayed_rule_is_the_live_one(
    studied: Study, done: tuple[PreparedEvaluation, dict[tuple[str, str], Record]]
) -> None:
    replayed = studied.replay(RECIPES[1], RULE)
    live = [done[1][RECIPES[1], case.example.id] for case in studied.cases]
    assert repeatable(replayed) == repeatable(
        [replace(one, measure=mine.measure) for one, mine in zip(live, replayed, strict=True)]
    )
    assert {one.finish for one in live} == {"settled", "complete"}
    assert any(one.tokens != case.record.tokens for one, case in zip(replayed, studied.cases, strict=True))


def test_windows_of_any_length_are_replayed_together(studied: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [case.trace for case in studied.cases]
    assert [trace.request.layout.length for trace in traces] == [32, 64, 32, 32, 64, 32]
    rules: list[Stop] = [RULE, Prophet(Linear(0.5, 0.1)), Stable(2), Stable(1)]
    expected = [[trace.replay(rule) for rule in rules] for trace in traces]
    assert len({str(steps) for steps in expected}) > 3
    calls: list[int] = []
    read_traces(traces, lambda beliefs, _: calls.append(len(beliefs.tokens)) or beliefs.tokens)  # type: ignore[func-returns-value]
    assert calls == [1 + 4 + 3 + 3, 40 + 35], "the number of masks makes no difference"
    names = LOOKS["text"]
    alone = torch.cat([features(trace, trace.states(), names) for trace in traces])
    for size in (1, 3, 32):
        monkeypatch.setattr("foretell.certify.outcomes.TRACES_PER_BATCH", size)
        assert find_exits(traces, rules) == expected
        assert torch.allclose(collect_features(studied.cases, names), alone)
    found = replay_rules(studied.cases, rules)
    for row, rule in enumerate(rules):
        records = studied.replay("x", rule)
        assert found.steps[row].tolist() == [one.steps for one in records]
        assert found.changed[row].tolist() == [
            one.answer != case.record.answer for one, case in zip(records, studied.cases, strict=True)
        ]


def test_the_share_of_the_budget_is_each_texts_own(studied: Study) -> None:
    cases = tuple(replace(case, record=replace(case.record, correct=True)) for case in studied.cases)
    found = replace(studied, cases=cases)
    for share in (0.25, 0.5, 0.75):
        early = [case.last_change is not None and case.last_change < share * case.record.budget for case in cases]
        assert found.settled_by(share, for_good=True) == sum(early) / len(early)
    assert 0 < sum(early) < len(early)


@pytest.mark.parametrize(
    ("answer", "fills", "right"),
    [
        ("EVQL", ("E", "V", "QL"), True),
        (["E", "V", "QL"], ("E", "V", "QL"), True),
        ("4 red 5", ("4 red", "5"), True),
        (["4 red", 5], ("4 red", "5"), True),
        ("EVQL", ("E", "V", "QI"), False),
        (["4 red", 5], ("4 red",), False),
        ("", ("",), True),
        (None, ("",), False),
    ],
)
def test_fills_are_compared_with_the_answer(answer: Any, fills: tuple[str, ...], right: bool, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "[MASK]", "answer": answer}))
    (example,) = Fill().examples(tmp_path / "a.jsonl", None, 0)
    completion: Any = type("Filled", (), {"fills": fills})
    assert Fill().grade(example, Fill().extract(completion)) is right
    assert Fill().extract(completion) == ("".join(fills) or None)


@pytest.mark.parametrize(
    ("lines", "options", "says"),
    [
        (["Tom has 3."], {}, r"masked\.jsonl, line 1, example 1: the text has no mask to fill"),
        (["Tom [MASK]", {"text": "Tom", "id": "b"}], {}, r"masked\.jsonl, line 2, example b: the text has no mask"),
        ([{"messages": [{"role": "user", "content": "a"}]}], {}, r'line 1: masks are filled in a "text" or a "prompt"'),
        ([{"text": "[MASK]", "answer": {}}], {}, r'line 1: "answer" must be a text or a list of texts, got {}'),
        ([{"text": "[MASK]", "answer": ["a", None]}], {}, r'"answer" must be a text or a list of texts'),
        ([{"text": "[MASK]", "answer": True}], {}, r'"answer" must be a text or a list of texts, got True'),
        (["[MASK]"], {"suffix": "is"}, r"^suffix='is' is for a window after a prompt"),
        (["[MASK]"], {"layout": "choice"}, r"^layout='choice' is for a window after a prompt"),
        (["[MASK]"], {"max_new_tokens": 8}, r"^max_new_tokens=8 is for a window after a prompt"),
    ],
)
def test_mistakes_are_named(lines: list[Any], options: Any, says: str, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "masked.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    what = Evaluation(str(checkpoint), "fill", ("full",), tmp_path / "out", source=file, options=options)
    with pytest.raises(RequestError, match=says):
        evaluate(what)
    assert not (tmp_path / "out").exists(), "nothing is decoded"


def test_a_window_in_the_recipe_is_refused(checkpoint: Path, file: Path, tmp_path: Path) -> None:
    what = Evaluation(str(checkpoint), "fill", ("full max_new_tokens=8",), tmp_path, source=file)
    with pytest.raises(RequestError, match="max_new_tokens=8 is for a window after a prompt"):
        evaluate(what)
    with pytest.raises(RequestError, match="texts with masks are read from a file, but none was given"):
        evaluate(replace(what, source=None))


def test_another_text_is_another_evaluation(tmp_path: Path) -> None:
    hashes = []
    for text in ("a [MASK]", "b [MASK]"):
        (tmp_path / "a.txt").write_text(text)
        examples = Fill().examples(tmp_path / "a.txt", None, 0)
        assert examples == Fill().examples(tmp_path / "a.txt", None, 0)
        hashes.append(examples_hash(examples))
    assert hashes[0] != hashes[1]


def test_the_tokenizers_own_mask_is_one(literate: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The answer is <|mdm_mask|><|mdm_mask|>.\n")
    (record,) = evaluate(Evaluation(str(literate), "fill", ("full",), tmp_path / "out", source=tmp_path / "a.txt"))
    assert record.tokens is not None
    assert len(record.tokens) == record.steps == 2
    assert record.tokens == foretell.load(literate).fill("The answer is [MASK*2].").generated

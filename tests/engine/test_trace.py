"""Traces: what they hold, that replay equals the live exit, and that files keep every bit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.engine.trace import STATISTICS, Recorder, Trace, with_words
from foretell.engine.trace_files import load_traces, save_traces
from foretell.errors import RequestError, StorageError, TraceError
from foretell.loop.decode import denoise_step
from foretell.policies.cache.delayed import Delayed
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.off import Off
from foretell.policies.cache.prefix import Prefix
from foretell.policies.region.masked import Masked
from foretell.policies.region.pattern import Pattern
from foretell.policies.region.whole import Whole
from foretell.policies.stop.combined import All
from foretell.policies.stop.head import Head
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear, Staged
from foretell.policies.stop.stable import Stable
from foretell.policies.visible.near import Near
from foretell.recipes.recipe import Recipe
from foretell.storage import replace_file
from tests.helpers import SOUGHT, WORDS, logits_of, model_of, run

LAYOUT = Layout.with_suffix(16, [3, 4], 3)
RULES: list[Any] = [
    Prophet(),
    Prophet(Staged(4, 3, 2)),
    Prophet(Linear(3, 1), reduce="min"),
    Prophet(Linear(3, 1), over="masked", one_based=True),
    Prophet(Linear(2, 1), clock="tokens"),
    Stable(1, 1.0),
    Stable(3, float("inf")),
    All((Prophet(Linear(3, 1)), Stable(2, float("inf")))),
]


def trace_of(kind: str = "toy", seed: int = 0, layout: Layout = LAYOUT, vocab: int = 24, **settings: Any) -> Trace:
    request = Request((1, 2), layout, Recipe(block_length=8, **settings), seed)
    (outcome,) = Scheduler(model_of(kind, seed, vocab), record=True).run([request])
    assert outcome.trace is not None
    return outcome.trace


def test_holds_every_position_of_every_step() -> None:
    trace = trace_of("network", 2)
    model = model_of("network", 2)
    canvas = [1, 2, *lay_out([trace.request], 0).window[0].tolist()]
    for step in range(len(trace)):
        logits = logits_of(model, canvas, 16)
        logits[:, 0] = -torch.inf
        two = logits.topk(2).values
        probs = logits.softmax(-1)
        blank = torch.tensor(canvas[2:]) == 0
        assert torch.equal(trace.tokens[step][blank], logits.argmax(-1)[blank])
        assert torch.allclose(trace.gap[step], two[:, 0] - two[:, 1], atol=1e-5)
        assert torch.allclose(trace.margin[step], probs.topk(2).values.diff(dim=-1)[:, 0].neg(), atol=1e-5)
        assert torch.allclose(trace.entropy[step], torch.special.entr(probs).sum(-1), atol=1e-4)
        assert torch.allclose(trace.confidence[step], probs.gather(1, trace.tokens[step][:, None])[:, 0], atol=1e-5)
        for position in (trace.filled_at == step).nonzero().squeeze(1).tolist():
            canvas[2 + position] = int(trace.tokens[step, position])
    assert canvas[2:] == trace.tokens[-1].tolist()
    assert trace.filled_at[[11, 12]].tolist() == [-1, -1]


def test_states_are_those_of_the_loop() -> None:
    trace, model = trace_of(seed=3), model_of("toy", 3)
    rebuilt, live = trace.states(), lay_out([trace.request], 0)
    recipe = replace(trace.request.recipe, stop=Prophet(Linear(float("inf"), float("inf"))))  # reads the answer
    for step in range(len(trace)):
        for name in ("window", "step", "masked", "progress", "filled"):
            assert torch.equal(getattr(rebuilt, name)[step], getattr(live, name)[0]), (name, step)
        read = live.answer[0] & live.masked[0]  # the live state knows drafts only where a policy reads
        for name in ("draft", "unchanged"):
            assert torch.equal(getattr(rebuilt, name)[step][read], getattr(live, name)[0][read]), (name, step)
        live = denoise_step(model, live, recipe).after


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 500), st.sampled_from(RULES), st.sampled_from([None, Whole(), Masked()]))
def test_replay_is_the_live_exit(seed: int, rule: Any, region: Any) -> None:
    """The rule fires at the same step on a stored full decoding as it did live, and commits the same text."""
    extra = {} if region is None else {"region": region}
    full = trace_of(seed=seed, **extra)
    request = replace(full.request, recipe=replace(full.request.recipe, stop=rule))
    state, steps = run(model_of("toy", seed), [request])
    exits = [int(step.before.step[0]) for step in steps if step.settled[0]]
    assert full.replay(rule) == (exits[0] if exits else None)
    if exits:
        assert full.committed(exits[0]).tolist() == state.window[0].tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 500), st.sampled_from(RULES), st.sampled_from(SOUGHT), st.booleans())
def test_replay_is_the_live_exit_of_an_answer_found(seed: int, rule: Any, region: Any, free: bool) -> None:
    """Also where the full decoding that is replayed was recorded with another region."""
    full = trace_of(seed=seed, layout=Layout(16) if free else LAYOUT, vocab=12)
    told = with_words(full, WORDS)
    request = replace(full.request, recipe=replace(full.request.recipe, stop=rule, region=region))
    state, steps = run(model_of("toy", seed, vocab=12), [request])
    exits = [int(step.before.step[0]) for step in steps if step.settled[0]]
    assert told.replay(rule, region) == (exits[0] if exits else None)
    if exits:
        assert told.committed(exits[0]).tolist() == state.window[0].tolist()
    for index, step in enumerate(steps):
        assert torch.equal(told.answer(region)[index], step.before.answer[0])
    with pytest.raises(
        RequestError, match=r"finds the answer in the text, and this trace does not say how tokens are written"
    ):
        full.replay(rule, region)


@pytest.mark.parametrize("cache", [Dual(), Prefix(2), Delayed(0), Off(Near(2))], ids=str)
def test_a_decoding_with_a_cache_replays_to_its_own_exit(cache: Any) -> None:
    """Also where the answer moves into columns that the step's own pass left out."""
    exits: Counter[bool] = Counter()
    for seed in range(20):
        rules: list[Any] = [Prophet(Linear(3, 0)), Stable(2, float("inf"))]
        region, rule = SOUGHT[seed % len(SOUGHT)], rules[seed // 10]
        recipe = Recipe(block_length=4, cache=cache, region=region, stop=rule)
        request = Request((3, 4), Layout(16), recipe)
        (told,) = Scheduler(model_of("network", seed, 12), (2,), record=True, spelling=WORDS).run([request])
        assert told.trace is not None
        assert with_words(told.trace, WORDS).replay(rule) == told.exit
        exits[told.exit is not None] += 1
    assert len(exits) == 2


def test_a_found_answer_stands_where_the_final_text_has_it() -> None:
    trace = with_words(trace_of(seed=1, layout=Layout(16), vocab=12), WORDS)
    moved = replace(trace, request=replace(trace.request, recipe=Recipe(region=Pattern(r"\d+"))))
    assert moved.place().any()
    assert torch.equal(moved.place(), moved.answer()[-1])
    assert moved.last_change() == trace.last_change(moved.place())
    assert not torch.equal(moved.answer()[0], moved.answer()[-1])


def test_exits_differ_between_rules() -> None:
    assert len({trace_of(seed=7).replay(rule) for rule in RULES}) >= 4


def test_a_rule_can_be_tried_on_another_region() -> None:
    trace = trace_of(seed=1)
    rule = Prophet(Linear(4, 2))
    assert trace.replay(rule, Whole()) == trace_of(seed=1, region=Whole()).replay(rule) != trace.replay(rule)
    assert trace.replay(Never()) is None


def test_first_match_and_last_change_by_hand() -> None:
    trace = trace_of(layout=Layout(4, answer=(2, 2)))
    tokens = torch.tensor([[5, 5, 1, 2], [5, 5, 7, 8], [5, 6, 7, 9], [5, 6, 7, 8]])
    made = replace(trace, tokens=tokens, request=replace(trace.request, layout=Layout(4, answer=(2, 2))))
    assert made.first_match() == 1
    assert made.last_change() == 3
    assert made.first_match(torch.tensor([0, 0, 1, 2])) == 0
    assert made.first_match(torch.tensor([0, 0, 4, 4])) is None
    assert made.last_change(torch.tensor([True, False, False, False])) == 0
    assert made.last_change(torch.tensor([False, True, False, False])) == 2
    nowhere = replace(made, request=replace(made.request, layout=Layout(4)))
    with pytest.raises(RequestError, match="no answer region"):
        nowhere.last_change()


def test_files_keep_every_bit(tmp_path: Path) -> None:
    traces = [
        trace_of(seed=1),
        replace(trace_of("network", 2, Layout(9)), words={1: "a", 2: "é", 3: "\n", 4: "\udcc3"}, spaced=True),
    ]
    save_traces(tmp_path / "some.trace", traces)
    loaded = load_traces(tmp_path / "some.trace")
    for before, after in zip(traces, loaded, strict=True):
        for name in ("tokens", "filled_at", *STATISTICS):
            assert torch.equal(getattr(before, name), getattr(after, name))
            assert getattr(before, name).dtype == getattr(after, name).dtype
        for name in ("request", "mask_id", "end_ids", "settled", "words", "spaced"):
            assert getattr(before, name) == getattr(after, name)
        assert [after.replay(rule) for rule in RULES] == [before.replay(rule) for rule in RULES]
    raw = sum(getattr(t, n).nbytes for t in traces for n in ("tokens", "filled_at", *STATISTICS))
    assert (tmp_path / "some.trace").stat().st_size < raw


@pytest.mark.parametrize("rule", [Judge, lambda path, bar: All((Judge(path, bar), Never()))], ids=["alone", "combined"])
def test_a_trace_outlives_its_judge(rule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read where the judge is another one by now, or gone, or looked for from another folder."""
    monkeypatch.chdir(tmp_path)
    zeros, ones = torch.zeros(1), torch.ones(1)
    first = Head(("gap_min",), zeros, ones, ((ones[None], zeros),))
    Path("j.json").write_text(first.text())
    before = trace_of(seed=1, stop=rule("j.json", 0.5))
    save_traces("some.trace", [before])
    Path("j.json").write_text(replace(first, mean=ones).text())
    (retrained,) = load_traces("some.trace")
    Path("j.json").unlink()
    (gone,) = load_traces("some.trace")
    for after in (retrained, gone):
        assert after.request == before.request
        assert [after.replay(other) for other in RULES] == [before.replay(other) for other in RULES]
    assert gone.replay(gone.request.recipe.stop) == before.replay(before.request.recipe.stop)  # read before
    monkeypatch.setattr("foretell.policies.stop.judge._READ", {})
    Path("j.json").write_text(first.text())
    (gone,) = load_traces("some.trace")
    with pytest.raises(StorageError, match=r"the judge j\.json .* is named by a request or a stored file"):
        gone.replay(gone.request.recipe.stop)
    Judge("j.json").read_file()
    assert gone.replay(gone.request.recipe.stop) == before.replay(before.request.recipe.stop)


def test_bad_files_are_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.trace"
    save_traces(whole, [trace_of()])
    (tmp_path / "cut.trace").write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "text.trace").write_text("no trace")
    (tmp_path / "empty.trace").write_text("")
    np.savez(tmp_path / "arrays.npz", tokens=np.zeros(3))
    np.savez(tmp_path / "other.npz", header=np.array(json.dumps({"version": 99, "traces": []})))
    for name, message in {
        "cut.trace": "not a complete trace file",
        "text.trace": "text.trace is not a trace file that",
        "empty.trace": "is not a trace file that",
        "arrays.npz": "is not a trace file that",
        "other.npz": "its format is 99",
        "none.trace": "cannot read the trace file",
    }.items():
        with pytest.raises(TraceError, match=message):
            load_traces(tmp_path / name)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("old")

    def interrupted() -> None:
        with replace_file(path) as part:
            part.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_settled_trace_ends_at_its_commit() -> None:
    trace = trace_of(seed=1, stop=Prophet(Linear(3, 3)))
    assert trace.settled
    assert len(trace) == trace.replay(Prophet(Linear(3, 3))) + 1  # type: ignore[operator]
    assert (trace.filled_at < len(trace)).all()


def test_a_recorder_follows_its_row() -> None:
    """Rows of a batch are recorded apart, also when they join late and leave early."""
    recipe = Recipe(block_length=8, stop=Prophet(Linear(4, 2)))
    requests = [Request(tuple(range(1, 2 + i)), LAYOUT, recipe, seed=i) for i in range(5)]
    together = {o.ticket: o.trace for o in Scheduler(model_of("toy", 8), max_batch=2, record=True).run(requests)}
    for ticket, request in enumerate(requests):
        (alone,) = Scheduler(model_of("toy", 8), record=True).run([request])
        one = together[ticket]
        assert one is not None
        assert alone.trace is not None
        assert torch.equal(one.tokens, alone.trace.tokens)
        assert torch.equal(one.gap, alone.trace.gap)
    assert Recorder(requests[0]).rows == []

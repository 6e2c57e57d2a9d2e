"""A judge sees the same numbers live and on a trace, does what its head says, and means one head for good."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import foretell
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.trace import Recorder
from foretell.errors import RecipeError, StorageError
from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView
from foretell.policies.stop import judge
from foretell.policies.stop.combined import read_files
from foretell.policies.stop.features import ANSWER, FEATURES, features, text_masks
from foretell.policies.stop.head import LARGEST, Head, read_head
from foretell.policies.stop.judge import Judge
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import untrusted
from tests.helpers import model_of, run

END = 2
LAYOUT = Layout(12, ((7, 5), (8, 6)), (9, 3))
KINDS = ("toy", "network")
PROMPTS = ((3, 4, 5, 6), (7, 8), (9, 10, 11), (5, 5))


@dataclass(frozen=True, eq=False)
class Spy:
    """Looks, like a judge, and never settles."""

    looks: list[Tensor] = field(default_factory=list)

    def reads(self, state: StateView) -> Tensor:
        return state.answer | text_masks(state)

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        self.looks.append(features(beliefs, state))
        return Verdict(torch.zeros_like(state.done))


def traces(recipe: Recipe, kind: str = "network", layout: Layout = LAYOUT) -> list[foretell.Trace]:
    model, made = model_of(kind, 3), []
    for prompt in PROMPTS:
        request = Request(prompt, layout, recipe)
        state, recorder = lay_out([request], model.mask_id, (END,)), Recorder(request)
        for step in foretell.loop.decode.decode(model, state, recipe):
            recorder.observe(step, 0)
        made.append(recorder.trace(model.mask_id, (END,)))
    return made


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((text, kind) for text in ("full block_length=6", "full stop_at_eos=true", "random") for kind in KINDS),
        ("full", "network"),
    ],
)
def test_the_same_live_and_from_the_trace(text: str, kind: str) -> None:
    recipe, model = foretell.parse(text), model_of(kind, 3)
    for prompt, trace in zip(PROMPTS, traces(recipe, kind), strict=True):
        spy = Spy()
        run(model, [Request(prompt, LAYOUT, replace(recipe, stop=spy))], (END,))
        live, stored = torch.cat(spy.looks), features(trace, trace.states())
        assert live.shape == stored.shape == (len(trace), len(FEATURES))
        for index, name in enumerate(FEATURES):
            assert torch.allclose(live[:, index], stored[:, index], rtol=1e-4, atol=1e-5), name
        assert stored.isfinite().all()


def test_every_feature_says_something() -> None:
    """In an answer of six tokens, because the lower quartile of four is the smallest."""
    made = traces(foretell.parse("full block_length=6"), layout=Layout(16, ((7, 5), (8, 6)), (9, 6)))
    looks = torch.cat([features(trace, trace.states()) for trace in made])
    varying = {name: column for name, column in zip(FEATURES, looks.T, strict=True) if column.std() > 0}
    assert varying.keys() >= set(FEATURES) - {"ends", "text_ends"}
    same = [pair for pair in combinations(varying, 2) if torch.equal(varying[pair[0]], varying[pair[1]])]
    assert same == []


def test_ends_are_chances_of_an_end() -> None:
    (trace, *_) = traces(foretell.parse("full"))
    ending = replace(trace, tokens=torch.full_like(trace.tokens, END))
    found = dict(zip(FEATURES, features(ending, ending.states()).T, strict=True))
    assert torch.allclose(found["ends"], trace.confidence[:, 9:].mean(dim=1))
    assert (found["text_ends"][:-1] > 0).all()


def head(names: tuple[str, ...] = ("gap_min",), weight: float = 1.0) -> Head:
    size = len(names)
    layer = (torch.full((1, size), weight), torch.zeros(1))
    return Head(names, torch.zeros(size), torch.ones(size), (layer,), {"task": "made up"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "a judge.json").write_text(head().text())
    return tmp_path / "a judge.json"


def test_it_settles_at_its_bar(file: Path) -> None:
    """This head is the smallest gap, so a judge is the rule of that gap."""
    for trace in traces(foretell.parse("full")):
        gaps = trace.gap[:, 9:].min(dim=1).values
        for bar in (0.5, 2.0):
            verdict = Judge(str(file), bar)(trace, trace.states())
            assert torch.equal(verdict.settled, gaps >= bar)
            assert verdict.value is not None
            assert torch.allclose(verdict.value, gaps)
            assert verdict.measure == "log-odds"
        assert not Judge(str(file), float("inf"))(trace, trace.states()).settled.any()
        empty = replace(trace, request=replace(trace.request, layout=Layout(12, LAYOUT.pins)))
        assert not Judge(str(file), -9.0)(empty, empty.states()).settled.any(), "no region, nothing settled"


def test_a_layer_between_is_bent(tmp_path: Path) -> None:
    deep = replace(head(), layers=((torch.tensor([[2.0], [1.0]]), torch.tensor([0.5, 0.0])),
                                   (torch.tensor([[1.0, -3.0]]), torch.tensor([0.25]))))  # fmt: skip
    value = torch.tensor([[0.7]])
    bent = torch.tensor([2 * 0.7 + 0.5, 0.7]).tanh()
    assert float(deep(value)) == pytest.approx(float(bent[0] - 3 * bent[1] + 0.25), abs=1e-6)
    moved = replace(deep, mean=torch.tensor([0.2]), scale=torch.tensor([0.5]))
    assert float(moved(value)) == pytest.approx(float(deep(torch.tensor([[1.0]]))), abs=1e-6)
    (tmp_path / "deep.json").write_text(moved.text())
    assert torch.equal(read_head(tmp_path / "deep.json")[0](value), moved(value)), "not a digit is lost"


def test_it_reads_what_its_features_need(file: Path, tmp_path: Path) -> None:
    (tmp_path / "wide.json").write_text(head(("gap_min", "text_left")).text())
    state = lay_out([Request((3,), LAYOUT)], 0)
    assert torch.equal(Judge(str(file)).reads(state), state.answer)
    assert torch.equal(Judge(str(tmp_path / "wide.json")).reads(state), state.masked)


def test_its_text_reads_back_and_means_one_head(file: Path) -> None:
    recipe = foretell.parse(f"full stop=judge(path='{file}', bar=2)")
    assert isinstance(recipe.stop, Judge)
    assert recipe.stop.sha256 == read_head(file)[1]
    assert foretell.parse(str(recipe)) == recipe
    assert recipe != foretell.parse(f"full stop=judge(path='{file}', bar=3)")
    assert foretell.parse(f"full stop=judge(path='{file}', bar=2, sha256='{recipe.stop.sha256[:3]}')") == recipe
    early, late = (pickle.loads(pickle.dumps(replace(recipe.stop))) for _ in range(2))  # as another process gets it
    assert early.head.names == ("gap_min",)
    file.write_text(head(weight=2.0).text())
    assert foretell.parse(str(recipe)) == recipe, "it can still be named"
    for copy in (late, foretell.parse(str(recipe)).stop):
        with pytest.raises(StorageError, match=r"has changed: its sha256 is \w+, not \w+"):
            read_files(copy)
    assert foretell.parse(f"full stop=judge(path='{file}', bar=2)") != recipe


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that judges open; none was named before."""
    paths: list[str] = []

    def spy(path: str | Path) -> tuple[Head, str]:
        paths.append(str(path))
        return read_head(path)

    monkeypatch.setattr("foretell.policies.stop.judge._READ", {})
    monkeypatch.setattr("foretell.policies.stop.judge.read_head", spy)
    return paths


def test_a_path_in_untrusted_text_is_never_opened(file: Path, opened: list[str]) -> None:
    digits = read_head(file)[1]
    with untrusted():
        for short in ("", f",sha256='{digits[:-1]}'"):
            with pytest.raises(RecipeError, match="judge needs all 12 digits of its sha256"):
                foretell.parse(f"full stop=any(never,judge({str(file)!r}{short}))")
        rule = foretell.parse(f"full stop=judge({str(file)!r},sha256={digits!r})").stop
    assert isinstance(rule, Judge)
    for same in (rule, replace(rule, bar=1.0), pickle.loads(pickle.dumps(rule))):
        with pytest.raises(StorageError, match="may not open files; name it yourself"):
            read_files(same)
    assert opened == []
    named = Judge(str(file))
    assert opened == [str(file)]
    assert named == rule
    assert str(Recipe(stop=named)) == str(Recipe(stop=rule))
    read_files(rule)  # the user has named the same file
    assert rule.head is named.head
    assert opened == [str(file)]
    with pytest.raises(StorageError, match="may not open files"):
        replace(rule, sha256="0" * 12).read_file()


def test_a_name_without_quotes_is_untrusted_too(file: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    (file.parent / "plain").write_bytes(file.read_bytes())
    with untrusted(), pytest.raises(RecipeError, match="needs all 12 digits"):
        foretell.parse("full stop=judge(plain)")
    with untrusted(), pytest.raises(RecipeError, match="needs all 12 digits"):
        foretell.parse("full stop=judge(a,sha256='0123456789ab') stop.path=plain stop.sha256=''")
    assert opened == []
    assert foretell.parse("full stop=judge(plain)").stop == Judge("plain")


def test_a_trace_does_not_open_the_judge_that_it_names(file: Path, tmp_path: Path, opened: list[str]) -> None:
    recipe = Recipe(stop=Judge(str(file), bar=99.0))
    foretell.save_traces(tmp_path / "traces.npz", traces(recipe)[:1])
    opened.clear()
    judge._READ.clear()
    (trace,) = foretell.load_traces(tmp_path / "traces.npz")
    assert trace.request.recipe == recipe
    with pytest.raises(StorageError, match="may not open files"):
        trace.replay(trace.request.recipe.stop)
    assert opened == []
    assert trace.replay(Judge(str(file), bar=99.0)) is None


def test_the_rule_is_the_same_in_a_batch(file: Path) -> None:
    model, recipe = model_of("network", 3), Recipe(stop=Judge(str(file), 0.7))
    requests = [Request(prompt, LAYOUT, recipe) for prompt in PROMPTS]
    state, _ = run(model, requests)
    singles = [run(model, [request])[0] for request in requests]
    assert [int(one.step[0]) for one in singles] == state.step.tolist()
    assert len({*state.step.tolist()}) > 1, "and it stops some of them before others"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"foretell_judge": 2}, "its format is 2"),
        ({"features": ["gap_mim"]}, "did you mean 'gap_min'"),
        ({"features": []}, "needs a feature"),
        ({"mean": [0.0, 1.0]}, "1 features need 1 means"),
        ({"scale": [0.0]}, "1 positive scales"),
        ({"mean": [[0.0]]}, r"'mean\[0\]' must be a number, got \[0.0\]"),
        ({"scale": 1.0}, "'scale' must be a list, got 1.0"),
        ({"mean": [float("nan")]}, "every number of 'mean' must be finite"),
        ({"mean": [10**400]}, r"'mean\[0\]'"),
        ({"scale": ["1"]}, r"'scale\[0\]' must be a number, got '1'"),
        ({"features": "gap_min"}, "'features' must be a list, got 'gap_min'"),
        ({"features": [["gap_min"]]}, r"'features\[0\]' must be a text"),
        ({"layers": [{"weight": [[1.0, 2.0]], "bias": [0.0]}]}, r"takes 1 numbers, got a weight of \(1, 2\)"),
        ({"layers": [{"weight": [[1.0], [2.0]], "bias": [0.0, 0.0]}]}, "must give one number, got 2"),
        ({"layers": None}, "'layers' must be a list, got None"),
        ({"layers": [{"weight": [[1.0]]}]}, r"'bias' is missing in 'layers\[0\]'"),
        (
            {"layers": [{"weight": [[None]], "bias": [0.0]}]},
            r"weight\[0\]\[0\]' must be a number, got None",
        ),
        ({"layers": [{"weight": [[1.0], []], "bias": [0.0]}]}, "'weight' must be a matrix"),
        ({"feetures": []}, "unknown key 'feetures'; did you mean 'features'"),
        ({"trained": ...}, "'trained' is missing"),
        ({"trained": [1]}, r"'trained' must be an object, got \[1\]"),
        ({"trained": {"examples": None}}, "'examples' must be a list, got None"),
        ({"trained": {"examples": [[1]]}}, r"'examples\[0\]' must be a text, got \[1\]"),
    ],
)
def test_a_file_that_is_none_is_refused(file: Path, change: dict[str, Any], says: str) -> None:
    whole = json.loads(file.read_text()) | change
    file.write_text(json.dumps({name: value for name, value in whole.items() if value is not ...}))
    with pytest.raises(StorageError, match=f"is not a judge: .*{says}"):
        Judge(str(file))


@pytest.mark.timeout(20)
def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read the judge nowhere\.json"):
        foretell.parse("full stop=judge(path='nowhere.json')")
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(StorageError, match="expected an object"):
        Judge(str(tmp_path / "other.json"))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match="is not a judge"):
        Judge(str(tmp_path / "deep.json"))
    with pytest.raises(StorageError, match="cannot read the judge"):
        Judge("no\0where.json")
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", "/dev/zero"):
        with pytest.raises(StorageError, match="it is not a regular file"):
            Judge(str(path))
    (tmp_path / "large.json").write_text(" " * (LARGEST + 1))
    with pytest.raises(StorageError, match="larger than"):
        Judge(str(tmp_path / "large.json"))
    assert set(ANSWER) < set(FEATURES)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((5,), "judge's path must be a text, got 5"),
        (("nowhere.json", float("nan")), "judge's bar must be from -1000000 to 1000000, got nan"),
        (("nowhere.json", 1e308), "judge's bar must be from -1000000 to 1000000, got 1e\\+308"),
        (("nowhere.json", "high"), "judge's bar must be a number, got 'high'"),
        (("nowhere.json", 2.0, 5), "judge's sha256 must be up to 12 digits of 0-9 and a-f, got 5"),
        (("nowhere.json", 2.0, "zebra"), "judge's sha256 must be up to 12 digits of 0-9 and a-f, got 'zebra'"),
    ],
)
def test_what_is_no_judge_is_refused(given: tuple[Any, ...], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        Judge(*given)


def test_an_answer_that_has_just_come_here_has_not_stood() -> None:
    """However long its tokens have been there."""
    trace = traces(Recipe())[0]
    state = trace.states()
    at = len(trace) - 1
    stood = ("stood_mean", "stood_min")
    assert (features(trace, state, stood)[at] > 0).all()
    state = state.with_text(answer_age=torch.zeros_like(state.answer_age))
    assert (features(trace, state, stood)[at] == 0).all()

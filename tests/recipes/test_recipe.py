"""Recipes as text: what can be written, and how a mistake is answered."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import pytest
import torch

import foretell
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.errors import RecipeError
from foretell.loop.decode import decode
from foretell.loop.protocols import Verdict
from foretell.loop.view import StateView
from foretell.models.toy import Toy
from foretell.policies import POLICIES
from foretell.policies.region.delimiter import Delimiter
from foretell.policies.region.json import Json
from foretell.policies.region.pattern import Pattern
from foretell.policies.score.confidence import Confidence
from foretell.policies.score.deferred import Deferred
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.filtered import Filtered
from foretell.policies.score.noisy import Noisy
from foretell.policies.stop.combined import All
from foretell.policies.stop.combined import Any as AnyOf
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.never import Never
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear, Staged
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure
from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.factor import Factor
from foretell.policies.transfer.jot import JoT
from foretell.policies.transfer.opening import Opening
from foretell.policies.transfer.threshold import Threshold
from foretell.recipes.presets import PRESETS
from foretell.recipes.recipe import Recipe, split_recipe
from foretell.recipes.text import signature

PROPHET = PRESETS["prophet"].recipe


class _Gaps:
    """Beliefs that are sure of nothing."""

    gap = tokens = confidence = margin = entropy = torch.zeros(1, 4)


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("full", Recipe()),
        ("prophet", replace(Recipe(), stop=Prophet())),
        ("prophet steps=128", replace(PROPHET, steps=128)),
        ("prophet steps=none", PROPHET),
        ("prophet stop.tau.high=8", replace(PROPHET, stop=Prophet(Staged(high=8.0)))),
        ("prophet stop.tau=linear(8, 3.5)", replace(PROPHET, stop=Prophet(Linear(8.0, 3.5)))),
        ("prophet stop.tau=linear(start=inf)", replace(PROPHET, stop=Prophet(Linear(start=math.inf)))),
        ("prophet stop.reduce=min stop.over='masked'", replace(PROPHET, stop=Prophet(reduce="min", over="masked"))),
        ("full stop_at_eos=true guidance=1", Recipe(stop_at_eos=True, guidance=1.0)),
        ("full score=deferred(entropy)", Recipe(score=Deferred(Entropy()))),
        ("full ban_eos=first", Recipe(ban_eos="first")),
        ("full ban_eos=true", Recipe(ban_eos=True)),
        ("full score=noisy(filtered(top_k=3), 0.5)", Recipe(score=Noisy(Filtered(top_k=3), 0.5))),
        ("full transfer=opening(factor(last=true))", Recipe(transfer=Opening(Factor(last=True)))),
        ("full region=delimiter('The answer is') steps=3", Recipe(region=Delimiter(), steps=3)),
        ('full region=delimiter("(it\'s) ) ", end=line)', Recipe(region=Delimiter("(it's) ) ", end="line"))),
        ("full region=delimiter region.marker='a = b' steps=3", Recipe(region=Delimiter("a = b"), steps=3)),
        ("full region=delimiter(Answer)", Recipe(region=Delimiter("Answer"))),
        ("full region=delimiter('true')", Recipe(region=Delimiter("true"))),
        ("full region=delimiter('is')", Recipe(region=Delimiter("is"))),
        ("full region=delimiter('\\n\\\\\\x00ﬁ')", Recipe(region=Delimiter("\n\\\x00ﬁ"))),
        (r"full region=pattern(r'\d+ (\'|\S)', group=1)", Recipe(region=Pattern(r"\d+ (\'|\S)", group=1))),
        ("full region=json('a.0')", Recipe(region=Json("a.0"))),
        (
            "full stop=all(prophet(tau=staged(low=-1)), stable(2, inf))",
            Recipe(stop=All((Prophet(Staged(low=-1.0)), Stable(2, math.inf)))),
        ),
        ("prophet stop.clock=tokens", replace(PROPHET, stop=Prophet(clock="tokens"))),
        ("threshold-prophet stop.clock=steps", Recipe(transfer=Threshold(), stop=Prophet(clock="steps"))),
        ("prophet stop.clock=tokens stop.clock=none", PROPHET),
        ("threshold stop=prophet(clock=tokens)", PRESETS["threshold-prophet"].recipe),
        # A setting may need one that follows it.
        ("prophet transfer=threshold stop.clock=tokens", PRESETS["threshold-prophet"].recipe),
        ("threshold-prophet transfer=threshold(0.995) stop.reduce=min stop_at_eos=true", PRESETS["swift"].recipe),
        ("threshold-prophet stop.clock=none transfer=quota", PROPHET),
        ("full transfer=jot(90, distance=4)", Recipe(transfer=JoT(90.0, distance=4))),
        ("full stop=any(sure(over=masked), persistent(4))", Recipe(stop=AnyOf((Sure(over="masked"), Persistent(4))))),
    ],
)
def test_reads(text: str, recipe: Recipe) -> None:
    assert foretell.parse(text) == recipe
    assert foretell.parse(str(recipe)) == recipe
    assert foretell.parse(recipe) is recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown recipe ''"),
        ("propet", "did you mean 'prophet'"),
        ("prophet stop.tau.hihg=8", "unknown parameter of staged 'hihg'; did you mean 'high'"),
        ("prophet stps=3", "unknown parameter of recipe 'stps'; did you mean 'steps'"),
        ("prophet steps.high=3", "steps has no parameters"),
        ("prophet steps", "write path=value"),
        ("prophet steps=2.5", "steps must be a whole number, got 2.5"),
        ("prophet steps=true", "steps must be a whole number, got true"),
        ("prophet steps=0", "steps must be at least 1, got 0"),
        ("prophet guidance=high", "guidance must be a number, got high"),
        ("prophet stop_at_eos=1", "stop_at_eos must be true or false, got 1"),
        ("prophet stop=prophecy", "unknown stop 'prophecy'; did you mean 'prophet'"),
        ("prophet stop=prophet(0,1,2,3,4,5,6,7)", "takes 7 parameters"),
        ("prophet stop=prophet(taw=1)", "unknown parameter of prophet 'taw'; did you mean 'tau'"),
        ("prophet stop=prophet(tau=3)", "must name a schedule, got 3"),
        ("prophet stop.reduce=mode", "unknown stop.reduce 'mode'"),
        ("prophet stop=__import__('os').system('true')", "must name a stop"),
        ("prophet stop=prophet(", "cannot read stop"),
        (
            "prophet region=delimiter region.marker=Answer:",
            "cannot read region.marker='Answer:'; write .* a text in quotes",
        ),
        ("prophet stop=all(prophet)", "at least two"),
        ("prophet stop.clock=minutes", "unknown stop.clock 'minutes'"),
        ("full ban_eos=frist", "unknown ban_eos 'frist'; did you mean 'first'. (available: false, first, true"),
        ("full ban_eos=1", "unknown ban_eos '1' (available: false, first, true"),
        ("full transfer=threshold(by=luck)", "unknown transfer.by 'luck' (available: confidence, score"),
        ("full score=filtered(top_p=2)", "filtered's top_p must be from 0 to 1, got 2.0"),
        ("full score=noisy(temperature=-1)", "noisy's temperature must be from 0 to 1000000, got -1.0"),
        ("threshold transfer.value=2", "threshold's value must be from 0 to 1, got 2.0"),
        ("threshold stop=prophet", "name a clock: prophet(clock=tokens"),
        ("full stop=all(never, never, x=1)", "all takes only rules without names, got x="),
        ("full stop=prophet(staged, tau=linear)", "stop gives prophet's tau twice"),
        ("full stop=prophet(q=0.1, q=0.2)", "stop gives prophet's q twice"),
        ("full cache=dual(window=near, visible=near)", "cache gives dual's visible twice"),
        ("full stop=prophet#(q=0.2)", "cannot read stop="),
        ("full cache=dual(refresh=-false)", "must be a number, a word, true or false, got -false"),
        ("full guidance=" + "9" * 400, "guidance must be from 0 to 1000000, got inf"),
        ("full stop=" + "all(" * 10_000 + "never" + ")" * 10_000, "cannot read stop="),
        ("full steps=" + "-" * 90_000 + "1", "nested more than 50 deep"),
        ("full steps=a" + ".b" * 300, "nested more than 50 deep"),
        ("full stop=" + "all(never," * 60 + "never" + ")" * 60, "nested more than 50 deep"),
        ("full " + "x" * 100_000, "at most 100,000 characters, got 100,005"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message.replace("(", r"\(")):
        foretell.parse(text)


def test_a_deep_rule_decodes() -> None:
    """As deep as it may be, it is read, printed, compared and run."""
    recipe = foretell.parse("full stop=" + "all(never," * 48 + "never" + ")" * 48)
    assert foretell.parse(str(recipe)) == recipe
    state = lay_out([Request((1,), Layout(4, answer=(0, 4)), recipe)], 0)
    assert not recipe.stop(_Gaps(), state).settled.any()


@pytest.mark.parametrize("opening", ["", "'", '"'])
def test_a_long_recipe_is_split_in_linear_time(opening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, where a search that begins again at every quote takes minutes."""
    monkeypatch.setattr("foretell.recipes.text.LONGEST", 10**7)
    text = "full region=" + opening + "x\\'\\\"" * 150_000
    name, ((path, value),) = split_recipe(text)
    assert (name, path, len(value)) == ("full", "region", len(text) - len("full region="))
    with pytest.raises(RecipeError, match="cannot read region"):
        foretell.parse(text)


POLICY_CLASSES = sorted({cls for kind in POLICIES.values() for cls in kind.values()}, key=lambda cls: cls.__name__)
WRONG: dict[str, list[Any]] = {
    "int": [-(2**70), 1.5, "1", True],
    "float": [math.nan, "1", True],
    "bool": ["no", 1, None],
}


@pytest.mark.parametrize("cls", [Recipe, *POLICY_CLASSES])
def test_every_parameter_is_checked(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers where they are given, booleans at the latest when the policy becomes a part of a recipe."""
    monkeypatch.setattr(Judge, "_read", (None, "0" * 64), raising=False)
    required: dict[str, Any] = {one.name: "x" for one in fields(cls) if one.default is MISSING and one.type == "str"}
    if cls in (All, AnyOf):
        required = {"rules": (Never(), Never())}
    for one in fields(cls):
        for value in WRONG.get(str(one.type).removesuffix(" | None"), []):
            if value is None and "None" in str(one.type):
                continue
            with pytest.raises(RecipeError, match=one.name):
                Recipe(score=Deferred(cls(**required | {one.name: value})))


CLOCKLESS: list[Any] = [
    Prophet(),
    Prophet(Linear()),
    All((Stable(), Prophet())),
    AnyOf((Prophet(clock="tokens"), All((Never(), Prophet())))),
]


@pytest.mark.parametrize("stop", CLOCKLESS)
@pytest.mark.parametrize("transfer", [Threshold(), EntropyBound(), JoT()])
def test_a_parallel_transfer_wants_a_clock_said(transfer: Any, stop: Any) -> None:
    """Both ways out are in the message; a sequential transfer has one clock and needs nothing said."""
    name = {Threshold: "threshold", EntropyBound: "entropy_bound", JoT: "jot"}[type(transfer)]
    with pytest.raises(RecipeError) as refused:
        Recipe(transfer=transfer, stop=stop)
    for part in (f"transfer={name}", "prophet(clock=tokens)", "prophet(clock=steps)"):
        assert part in str(refused.value)
    assert Recipe(stop=stop).stop == stop


@pytest.mark.parametrize(
    "stop",
    [Prophet(clock="steps"), Prophet(clock="tokens"), All((Prophet(clock="steps"), Stable())), Sure(), Persistent()],
)
def test_a_clock_that_is_said_is_taken(stop: Any) -> None:
    recipe = Recipe(transfer=Threshold(), stop=stop)
    assert foretell.parse(str(recipe)) == recipe


def test_a_clock_unsaid_is_by_steps() -> None:
    """So that recipes without it mean what they always did; said, it is another recipe and the same rule."""
    state = lay_out([Request((1,), Layout(4, answer=(0, 4)), Recipe(steps=8))], 0)
    state = state.with_text(step=state.step + 5, window=torch.tensor([[3, 0, 0, 0]]))
    bars = [Prophet(clock=clock)(_Gaps(), state).bar for clock in (None, "steps", "tokens")]
    assert [float(bar) for bar in bars if bar is not None] == [5.0, 5.0, 7.5]
    assert str(replace(PROPHET, stop=Prophet(clock="steps"))) == "full stop=prophet(clock=steps)"


def test_presets_are_themselves_and_different() -> None:
    texts = {name: str(preset.recipe) for name, preset in PRESETS.items()}
    assert len(set(texts.values())) == len(texts)
    assert {"full", "prophet", "prophet-linear", "sched", "dream", "random", "margin"} <= set(texts)
    assert {"threshold", "threshold-prophet", "factor", "frechet", "entropy-bound", "med", "jot"} <= set(texts)
    assert {"sure", "persistent", "stable"} <= set(texts)
    for name, preset in PRESETS.items():
        assert foretell.parse(name) == preset.recipe == foretell.parse(texts[name])


def test_a_rule_of_ones_own_has_the_name_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, slots=True)
    class Mine(Stable):
        pass

    with pytest.raises(RecipeError, match=r"Mine has no name in recipes; give it one: POLICIES\[kind\]\[name\] = Mine"):
        str(Recipe(stop=Mine()))
    monkeypatch.setitem(POLICIES["stop"], "mine", Mine)
    assert foretell.parse(str(Recipe(stop=Mine(3)))) == Recipe(stop=Mine(3))


class Own:
    """A stopping rule that returns what it is told to."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def reads(self, state: StateView) -> Any:
        return state.answer

    def __call__(self, beliefs: Any, state: StateView) -> Any:
        return self.said(beliefs, state)


@dataclass
class Melting:
    at: float = 0.5

    def reads(self, state: StateView) -> Any:
        return state.answer

    def __call__(self, beliefs: Any, state: StateView) -> Verdict:
        return Verdict(state.answer.any(dim=1))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stop": "prophet"}, "stop is the text 'prophet'; .* foretell.parse('full stop=prophet')"),
        ({"transfer": "quota"}, "transfer is the text 'quota'; .* foretell.parse('full transfer=quota')"),
        ({"stop": Prophet}, "stop is the class Prophet itself; give an instance: Prophet(...)"),
        ({"stop": Confidence()}, "stop must be a policy, an object with `reads` and `__call__`, got Confidence()"),
        ({"sample": 3}, "sample must be a policy, an object with `__call__`, got 3"),
        ({"stop": Melting()}, "stop=Melting cannot be hashed .* make the policy a frozen dataclass"),
    ],
)
def test_what_is_no_policy_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says.replace("(", r"\(").replace(")", r"\)")):
        Recipe(**given)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (lambda _b, _s: True, "Own returned True, a bool; .* a Verdict whose `settled` is a bool tensor"),
        (
            lambda b, _s: Verdict(b.confidence.mean() > 0.5),
            "`settled` is a bool tensor of shape .*; .* one value per row",
        ),
        (lambda b, _s: Verdict(b.confidence.mean(dim=1)), "`settled` is a float32 tensor of shape"),
        (lambda b, _s: Verdict(b.confidence > 0.5), "`settled` is a bool tensor of shape"),
        (lambda _b, s: Verdict(s.done.tolist()), "`settled` is .*False.*, a list"),
        (lambda _b, s: Verdict(s.done, s.done.float().mean()), "`value` is a float32 tensor of shape"),
        (lambda _b, s: Verdict(s.done, bar=s.length / 8), "`bar` is 0.5, a float"),
    ],
)
def test_a_verdict_of_another_shape_is_refused(said: Any, says: str) -> None:
    """Live, alone or beside another rule, and when a recording is asked."""
    plain = Request((1,), Layout(4, answer=(0, 4)), Recipe(block_length=2))
    for rule in (Own(said), All((Never(), Own(said)))):
        request = replace(plain, recipe=replace(plain.recipe, stop=rule))
        with pytest.raises(RecipeError, match=says):
            list(decode(Toy(), lay_out([request, request], 0), request.recipe))
    scheduler = Scheduler(Toy(), (), 1, record=True)
    scheduler.submit(plain)
    (done,) = scheduler.run()
    assert done.trace is not None
    with pytest.raises(RecipeError, match=says):
        done.trace.replay(Own(said))


def test_every_policy_has_a_listing() -> None:
    for kind, policies in POLICIES.items():
        for name, cls in policies.items():
            assert isinstance(signature(cls), str), (kind, name)
    assert signature(Stable) == "steps=1, entropy=0.005"
    assert signature(Prophet).startswith("tau=staged, reduce=mean")


def test_a_recipe_in_python_is_checked_too() -> None:
    with pytest.raises(RecipeError, match="unknown ban_eos 'frist'; did you mean 'first'"):
        Recipe(ban_eos="frist")  # type: ignore[arg-type]

"""A row whose logits are not finite fails by itself; the other rows of its batch are decoded as if it were absent."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from foretell.engine.completion import NO_MASK
from foretell.engine.engine import Engine, Failure, load
from foretell.engine.outcome import FailedRequest, Outcome
from foretell.engine.request import Layout, Request
from foretell.engine.scheduler import Scheduler
from foretell.errors import ModelError, RecipeError, RowsFailedError
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Denoiser, Inputs, Readout
from foretell.loop.view import StateView
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe
from tests.helpers import WORDS, network, run

BAD = 9  # a prompt with this token makes the model fail
RECIPES = (
    "full",
    "dream",
    "full sample=nucleus(1.0,0.9,5)",
    "full sample=gumbel(0.7)",
    "swift region=masked",
    "fast-dllm",
    "full transfer=entropy_bound(0.5) score=random",
    "full region=pattern('a') stop=persistent(2)",
    "full ban_eos=true",
)


@dataclass(frozen=True)
class Failing:
    """Returns a logit of `value` for rows with the token BAD, once `known` positions of their window are filled."""

    inner: Denoiser
    value: float
    known: int = 0
    whole: bool = False  # every logit instead of a single one

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        window = inputs.canvas[:, inputs.prompt :]
        bad = (inputs.canvas == BAD).any(dim=1) & ((window != self.mask_id).sum(dim=1) >= self.known)  # [b]
        readout = self.inner(inputs)

        def read(row: Tensor, at: Tensor) -> Tensor:
            logits = readout(row, at)
            place = slice(None) if self.whole else slice(4, 5)
            logits[:, place] = torch.where(bad[row][:, None], self.value, logits[:, place])
            return logits

        return read

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)


def requests(recipe: str) -> list[Request]:
    prompts = [(3, 4, 5), (3, BAD), (6,), (7, 8, BAD, 4), (5, 5)]
    return [Request(prompt, Layout(6), parse(recipe), seed) for seed, prompt in enumerate(prompts)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("value", "whole"), [(nan, False), (inf, False), (-inf, True)])
def test_only_the_failing_rows_fail(recipe: str, value: float, whole: bool) -> None:
    sound, asked = network(5), requests(recipe)
    scheduler = Scheduler(Failing(sound, value, whole=whole), (2,), max_batch=4, spelling=WORDS)
    for request in asked:
        scheduler.submit(request)
    ended: dict[int, Outcome | FailedRequest] = {}
    while scheduler.busy:
        ended |= {one.ticket: one for one in scheduler.step()}
    assert sorted(ended) == [0, 1, 2, 3, 4]
    for ticket, one in ended.items():
        if ticket in (1, 3):
            assert isinstance(one, FailedRequest)
            assert isinstance(one.error, ModelError)
            assert str(one.error).startswith("step 0: ")
        else:
            assert isinstance(one, Outcome)
            (alone,) = Scheduler(sound, (2,), spelling=WORDS).run([asked[ticket]])
            assert (one.tokens, one.steps, one.forwards) == (alone.tokens, alone.steps, alone.forwards)


def test_the_step_is_named_and_the_work_before_it_is_counted() -> None:
    scheduler = Scheduler(Failing(network(5), nan, known=2), max_batch=2)
    good = Request((3, 4), Layout(6), parse("full"))
    for request in (good, Request((BAD, 4), Layout(6), parse("full"))):
        scheduler.submit(request)
    ended = []
    while scheduler.busy:
        ended += scheduler.step()
    failed, done = ended
    assert isinstance(failed, FailedRequest)
    assert "step 2: a position has no finite best logit" in str(failed.error)
    assert isinstance(done, Outcome)
    assert (done.steps, done.forwards) == (6, 6)
    assert scheduler.usage.columns_needed == (6 + 2) * 8  # the failed row's two steps, and all of the other's


def test_the_plain_loop_and_a_plain_run_raise() -> None:
    model, asked = Failing(network(5), nan, known=1), requests("full")
    with pytest.raises(RowsFailedError, match=r"row 1: step 1: .*; row 3: step 1: "):
        run(model, asked)
    with pytest.raises(ModelError, match="step 1"):
        list(Scheduler(model).run(asked))


@pytest.fixture
def engine() -> Engine:
    """An engine whose model fails for prompts that hold the word of token BAD."""
    tiny = load("tiny")
    tiny.model = Failing(tiny.model, nan, known=4)
    return tiny


@dataclass(frozen=True)
class FailsAtLast:
    """A region that cannot be found in the final text of a row whose budget is 3."""

    sought: ClassVar[bool] = True

    def __call__(self, state: StateView) -> Tensor:
        if state.mask_id == NO_MASK and int(state.budget[0]) == 3:
            raise RowsFailedError({0: RecipeError("the search was given up")})
        return torch.zeros_like(state.blank)


def test_a_completion_that_fails_does_not_end_the_others() -> None:
    tiny = load("tiny")
    recipe = Recipe(region=FailsAtLast())
    pairs = [([10, 11], tiny.template(max_new_tokens=8, recipe=recipe, steps=steps)) for steps in (2, 3, 4)]
    done = dict(tiny.generate_iter(pairs, errors="return"))
    assert [isinstance(done[at], Failure) for at in range(3)] == [False, True, False]
    assert str(done[1]) == "the search was given up"
    with pytest.raises(RecipeError, match=r"prompts\[1\] cannot be decoded: the search was given up"):
        list(tiny.generate_iter(pairs))


def test_errors_are_per_request(engine: Engine) -> None:
    template = engine.template(max_new_tokens=8, recipe="swift")
    prompts = [([10, 11], template), ([10, BAD], template), ([12], template)]
    done = dict(engine.generate_iter(prompts, errors="return"))
    assert isinstance(done[1], Failure)
    assert "no finite best logit" in str(done[1])
    sound = load("tiny").generate([[10, 11], [12]], max_new_tokens=8, recipe="swift")
    assert [done[0].tokens, done[2].tokens] == [one.tokens for one in sound]  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"prompts\[1\] cannot be decoded: step"):
        engine.generate([[10, 11], [10, BAD]], max_new_tokens=8)
    with pytest.raises(ModelError, match="step 1"):
        engine.generate([10, BAD], max_new_tokens=8)
    with pytest.raises(ModelError, match="step 1"):
        list(engine.stream([10, BAD], max_new_tokens=8))

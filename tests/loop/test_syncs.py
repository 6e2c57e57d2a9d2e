"""How often a step waits for the device: once, unless a row commits or something is looked at from outside."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.scheduler import Scheduler
from foretell.loop.decode import denoise_step
from foretell.loop.state import DecodeState
from foretell.policies.cache.drift import Drift
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.off import Off
from foretell.policies.cache.prefix import Prefix
from foretell.policies.region.masked import Masked
from foretell.policies.sample.gumbel import Gumbel
from foretell.policies.score.entropy import Entropy
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.threshold import Threshold
from foretell.policies.verify.recheck import Recheck
from foretell.policies.visible.near import Near
from foretell.recipes.recipe import Recipe
from tests.helpers import network

WAITS = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "cpu", "unique", "masked_select"}
NEVER = Prophet(Linear(float("inf"), float("inf")), clock="tokens")


class Waits(TorchFunctionMode):
    """Counts what would wait for a device, if tensors were on one: all but those that `cpu` has brought over."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.host: dict[int, Tensor] = {}  # kept alive, so that no id is used twice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        given = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
        here = any(id(one) in self.host for one in given)
        masks = name in ("__getitem__", "__setitem__") and any(
            one.dtype == torch.bool for one in tree_iter(args[1]) if isinstance(one, Tensor)
        )
        if (name in WAITS or masks) and not here:
            self.seen[name] += 1
        if (here and name != "to") or name == "cpu":
            # On a CPU `cpu` hands out what it was given, which is still the device's.
            made = made.clone() if name == "cpu" else made
            self.host |= {id(one): one for one in tree_iter(made) if isinstance(one, Tensor)}
        return made


def a_state(recipe: Recipe, rows: int = 3) -> DecodeState:
    layout = Layout.with_suffix(12, [5], 2)
    requests = [Request(tuple(range(1, 4 + row)), layout, recipe, row) for row in range(rows)]
    return lay_out(requests, 0, (2,))


RECIPES = [
    Recipe(block_length=4),
    Recipe(block_length=4, stop=NEVER),
    Recipe(block_length=4, stop=NEVER, cache=Off(Near(2))),
    Recipe(block_length=4, stop=NEVER, cache=Dual()),
    Recipe(block_length=4, stop=NEVER, cache=Prefix(2, Near(1)), stop_at_eos=True),
    Recipe(block_length=4, stop=NEVER, cache=Drift(), region=Masked(), score=Entropy()),
    Recipe(block_length=4, stop=NEVER, transfer=Threshold(0.5), verify=Recheck()),
    Recipe(block_length=4, stop=NEVER, transfer=EntropyBound(), sample=Gumbel(), guidance=1.0),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_step_waits_once(recipe: Recipe) -> None:
    model, step = network(1), denoise_step(network(1), a_state(recipe), recipe)
    for _ in range(3):
        with Waits() as waits:
            step = denoise_step(model, step.after, recipe, step.ahead)
            assert len(step.ahead.finished) == 3
        assert waits.seen == {"cpu": 1}


def test_the_scheduler_adds_none() -> None:
    recipe = Recipe(block_length=4, stop=NEVER)
    scheduler = Scheduler(network(1), max_batch=3)
    for row in range(3):
        scheduler.submit(Request(tuple(range(1, 4 + row)), Layout.with_suffix(12, [5], 2), recipe, row))
    scheduler.step()
    with Waits() as waits:
        assert scheduler.step() == []
    assert waits.seen == {"cpu": 1}


def test_a_commit_waits_a_few_times_more() -> None:
    recipe = Recipe(block_length=4, stop=Prophet(Linear(-1, -1)))
    state = a_state(recipe)
    with Waits() as waits:
        step = denoise_step(network(1), state, recipe)
        assert step.settled.all()
    # The plans before the step, after it, and after the commit; and what is committed.
    assert waits.seen["cpu"] == 3
    assert waits.seen["nonzero"] >= 1
    assert sum(waits.seen.values()) <= 6
    assert all(step.ahead.finished)


def test_rows_that_come_or_go_need_a_new_plan() -> None:
    recipe = Recipe(block_length=4, stop=Never())
    model, step = network(1), denoise_step(network(1), a_state(recipe), recipe)
    with Waits() as waits:
        after = denoise_step(model, step.after.keep([2, 0]), recipe).after
    assert waits.seen == {"cpu": 2}
    assert after.meters.forwards.tolist() == [2, 2]

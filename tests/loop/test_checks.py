"""What a plugged-in policy returns is checked, and the message names the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import RecipeError
from foretell.loop.decode import denoise_step
from foretell.loop.parts import Plan
from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView
from foretell.policies.stop.combined import All
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.recipes.recipe import Recipe
from tests.helpers import WORDS, network

B, N = 2, 12
GRID, ROWS = (B, N), (B,)
Make = Callable[[StateView, int], Any]  # the state and, for a sampling policy, the number of positions


@dataclass(frozen=True)
class Plugin:
    """A policy of any kind, which returns whatever `make` does."""

    make: Make
    stores: bool = False
    sought: bool = False
    parallel: ClassVar[bool] = False
    passes: ClassVar[int] = 2

    def reads(self, state: StateView) -> Tensor:
        return torch.zeros_like(state.pinned)

    def __call__(self, *given: Any) -> Any:
        (state,) = (one for one in given if isinstance(one, StateView))
        return self.make(state, len(given[-1]) if isinstance(given[-1], Tensor) else 0)


@dataclass(frozen=True)
class Reading:
    """A stopping rule that never settles, and reads whatever `make` says."""

    make: Make

    def reads(self, state: StateView) -> Tensor:
        grid: Tensor = self.make(state, 0)
        return grid

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        return Verdict(torch.zeros_like(state.done))


def returns(shape: tuple[int, ...] | None, dtype: torch.dtype = torch.bool) -> Make:
    """A `make` of zeros; without a shape, one per position that is sampled."""
    return lambda _, n: torch.zeros((n,) if shape is None else shape, dtype=dtype)


def constant(value: object) -> Make:
    return lambda *_: value


def verdict(**parts: Any) -> Make:
    return constant(Verdict(**{"settled": torch.zeros(ROWS, dtype=torch.bool), **parts}))


def plan(**parts: tuple[tuple[int, ...], torch.dtype]) -> Make:
    tensors: dict[str, Any] = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in parts.items()}
    return constant(Plan(**tensors))


def step(**policy: Any) -> None:
    recipe = Recipe(block_length=4, **policy)
    requests = [Request((3, 4, 5), Layout.with_suffix(N, [5], 2), recipe, seed) for seed in range(B)]
    denoise_step(network(1), lay_out(requests, 0, (2,), spelling=WORDS), recipe)


BOOL, FLOAT = torch.bool, torch.float32
FULL, QUERY = {"full": (ROWS, BOOL)}, {"query": (GRID, BOOL)}
GOOD: list[dict[str, Any]] = [
    {"score": Plugin(returns(GRID, FLOAT))},
    {"score": Plugin(returns(GRID, torch.float64))},
    {"transfer": Plugin(returns(GRID))},
    {"stop": Plugin(verdict(value=torch.zeros(ROWS)))},
    {"stop": Reading(returns(GRID))},
    {"verify": Plugin(returns(GRID))},
    {"region": Plugin(returns(GRID)), "stop": Prophet()},
    {"region": Plugin(returns(GRID), sought=True)},
    {"sample": Plugin(returns(None, torch.int64))},
    {"sample": Plugin(returns(None, torch.int32))},
    {"cache": Plugin(plan())},
    {"cache": Plugin(plan(visible=(GRID, BOOL)))},
    {"cache": Plugin(lambda *_: Plan(torch.ones(ROWS, dtype=BOOL), torch.zeros(GRID, dtype=BOOL)), stores=True)},
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"score": Plugin(returns(GRID, torch.int64))}, r"an? int64 tensor of shape \[2, 12\]; a score returns a float"),
    ({"score": Plugin(returns((N,), FLOAT))}, r"shape \[12\]; a score"),
    ({"score": Plugin(constant(None))}, "None, a NoneType; a score"),
    ({"transfer": Plugin(returns(GRID, FLOAT))}, "float32 .* a transfer returns a bool"),
    ({"transfer": Plugin(returns((1, N)))}, r"shape \[1, 12\]; a transfer"),
    ({"verify": Plugin(returns(GRID, FLOAT))}, "float32 .* a verifier returns a bool"),
    ({"verify": Plugin(returns(ROWS))}, r"shape \[2\]; a verifier"),
    ({"region": Plugin(returns(GRID, torch.int64)), "stop": Prophet()}, "int64 .* a region returns a bool"),
    ({"region": Plugin(returns((N,))), "stop": Prophet()}, r"shape \[12\]; a region"),
    ({"region": Plugin(returns((N,)), sought=True)}, r"shape \[12\]; a region"),
    ({"stop": Plugin(returns(ROWS))}, "a stopping rule returns a Verdict"),
    ({"stop": Plugin(verdict(settled=torch.zeros(ROWS)))}, "`settled` is a float32"),
    ({"stop": Plugin(verdict(settled=torch.zeros(GRID, dtype=BOOL)))}, "one value per row"),
    ({"stop": Plugin(verdict(value=torch.zeros(GRID)))}, "`value` is a float32"),
    ({"stop": Plugin(verdict(bar=1.0))}, "`bar` is 1.0, a float"),
    ({"stop": Reading(returns(GRID, FLOAT))}, "float32 .* the `reads` of a stopping rule returns a bool"),
    ({"stop": Reading(returns(ROWS))}, r"shape \[2\]; the `reads`"),
    ({"stop": All((Never(), Reading(returns((1, N)))))}, r"shape \[1, 12\]; the `reads`"),
    ({"sample": Plugin(returns(None, FLOAT))}, r"float32 .* a sampling policy returns integer token ids \[n\]"),
    ({"sample": Plugin(returns(None))}, "bool .* a sampling policy"),
    ({"sample": Plugin(returns((1,), torch.int64))}, r"shape \[1\]; a sampling policy"),
    ({"cache": Plugin(constant(None))}, "a cache policy returns a Plan"),
    ({"cache": Plugin(plan(full=(GRID, BOOL), **QUERY))}, r"`full` is a bool tensor of shape \[2, 12\].*\[2\]"),
    ({"cache": Plugin(plan(query=((N,), BOOL), **FULL))}, r"`query` is .* shape \[12\].*\[2, 12\]"),
    ({"cache": Plugin(plan(visible=(GRID, FLOAT)))}, "`visible` is a float32"),
    ({"cache": Plugin(plan(**QUERY))}, "without `full`"),
    ({"cache": Plugin(plan(**FULL))}, "without `query`"),
    ({"cache": Plugin(plan(), stores=True)}, "without `full`"),
]


@pytest.mark.parametrize("policy", GOOD, ids=lambda policy: next(iter(policy)))
def test_what_the_contract_allows_is_taken(policy: dict[str, Any]) -> None:
    step(**policy)


@pytest.mark.parametrize(("policy", "message"), BAD, ids=[f"{next(iter(policy))}-{text:.30}" for policy, text in BAD])
def test_a_wrong_answer_names_the_policy(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=f"^(Plugin|Reading) returned .*{message}"):
        step(**policy)

"""Whether an answer is settled: the stopping rule's verdict, where need be on an answer found in the text first."""

from __future__ import annotations

from dataclasses import replace

import torch

from foretell.errors import RecipeError
from foretell.prediction import Prediction
from foretell.protocols import Beliefs, Stop, Verdict
from foretell.recipe import Recipe
from foretell.spec import title
from foretell.state import DecodeState

WANTED = "a stopping rule returns a Verdict whose `settled` is a bool tensor [B], one value for each of the B rows"
SHOWN = "it must be a tensor [B], one value for each of the B rows, or None"


def settle(beliefs: Prediction, state: DecodeState, recipe: Recipe) -> Verdict:
    """The verdict of this step; rows that are done or look over a commit are not settled (again)."""
    return _sought(beliefs, state, recipe) if recipe.region.sought else _verdict(beliefs, state, recipe)


def ask(stop: Stop, beliefs: Beliefs, state: DecodeState) -> Verdict:
    """What `stop` says; a `RecipeError` unless it is a verdict on every row. Nobody waits for the values."""
    verdict, rows = stop(beliefs, state), state.done.shape
    if not isinstance(verdict, Verdict):
        raise RecipeError(f"{title(stop)} returned {_described(verdict)}; {WANTED}")
    if not (_is_row(verdict.settled, rows) and verdict.settled.dtype == torch.bool):
        raise RecipeError(
            f"{title(stop)} returned a Verdict whose `settled` is {_described(verdict.settled)}; {WANTED}"
        )
    for name in ("value", "bar"):
        shown = getattr(verdict, name)
        if shown is not None and not _is_row(shown, rows):
            raise RecipeError(f"{title(stop)} returned a Verdict whose `{name}` is {_described(shown)}; {SHOWN}")
    return verdict


def _is_row(given: object, rows: torch.Size) -> bool:
    return isinstance(given, torch.Tensor) and given.shape == rows


def _described(given: object) -> str:
    if not isinstance(given, torch.Tensor):
        return f"{given!r:.60}, a {type(given).__name__}"
    return f"a {str(given.dtype).removeprefix('torch.')} tensor of shape {list(given.shape)}"


def _verdict(beliefs: Prediction, state: DecodeState, recipe: Recipe) -> Verdict:
    verdict = ask(recipe.stop, beliefs, state)
    return verdict._replace(settled=verdict.settled & ~state.done & ~state.checking)


def _sought(beliefs: Prediction, state: DecodeState, recipe: Recipe) -> Verdict:
    """The verdict on an answer that is looked for in the text which the step proposes, left in `state.answer`.

    What the step's own passes leave out keeps an old proposal. So a row whose answer was found there is computed as a
    whole, and so is one that is about to settle: what that changes is looked through again before it counts.
    """
    asked, place, stayed = (~state.done & ~state.checking)[:, None], state.answer, state.stayed

    def look() -> None:
        beliefs.skim(state.blank & ~state.done[:, None], measure=True)
        state.answer = recipe.region(replace(state, draft=beliefs.tokens))
        same = (state.answer == place).all(dim=1) & (state.step > 0)
        state.stayed = torch.where(same, stayed + 1, 0)

    look()
    if beliefs.complete(recipe.stop.reads(state) & asked, measure=True):
        look()
        beliefs.skim(recipe.stop.reads(state) & asked, measure=True)
    verdict = _verdict(beliefs, state, recipe)
    if not beliefs.complete(verdict.settled[:, None] & state.masked, measure=True):
        return verdict
    look()
    beliefs.skim(recipe.stop.reads(state) & asked, measure=True)
    again = _verdict(beliefs, state, recipe)
    return again._replace(settled=again.settled & verdict.settled)

"""Whether an answer is settled: the stopping rule's verdict, where need be on an answer found in the text first."""

from __future__ import annotations

from dataclasses import replace

import torch

from foretell.policies.region.locate import locate_answer
from foretell.policies.stop.ask import ask
from foretell.prediction import Prediction
from foretell.protocols import Verdict
from foretell.recipe import Recipe
from foretell.state import DecodeState


def settle(beliefs: Prediction, state: DecodeState, recipe: Recipe) -> Verdict:
    """The verdict of this step; rows that are done or look over a commit are not settled (again)."""
    return _sought(beliefs, state, recipe) if recipe.region.sought else _verdict(beliefs, state, recipe)


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
        state.answer = locate_answer(recipe.region, replace(state, draft=beliefs.tokens))
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

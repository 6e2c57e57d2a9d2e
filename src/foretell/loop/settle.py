"""Decide whether an answer is settled: find it in the text if necessary, then ask the stopping rule."""

from __future__ import annotations

import torch

from foretell.loop.beliefs import StepBeliefs
from foretell.loop.checks import ask_reads, ask_region, ask_stop
from foretell.loop.protocols import Recipe, Verdict
from foretell.loop.state import DecodeState


def settle(beliefs: StepBeliefs, state: DecodeState, recipe: Recipe) -> tuple[Verdict, DecodeState]:
    """Return the verdict of this step, and the state with the answer that it is about."""
    if recipe.region.sought:
        return _settle_found_answer(beliefs, state, recipe)
    return _judge(beliefs, state, recipe), state


def _judge(beliefs: StepBeliefs, state: DecodeState, recipe: Recipe) -> Verdict:
    """Ask the stopping rule. Rows that are done or being checked do not settle again."""
    verdict = ask_stop(recipe.stop, beliefs, state)
    return verdict._replace(settled=verdict.settled & ~state.done & ~state.checking)


def _settle_found_answer(beliefs: StepBeliefs, before: DecodeState, recipe: Recipe) -> tuple[Verdict, DecodeState]:
    """Judge an answer that is found in the text which the step proposes.

    Positions outside the step's own passes keep an old proposal. So a row whose answer has such positions is computed
    as a whole, and so is a row that is about to settle. If that changes the text, the answer is searched for again.
    """
    asked = (~before.done & ~before.checking)[:, None]
    state = _find_answer(beliefs, before, recipe)
    if beliefs.read_or_compute(ask_reads(recipe.stop, state) & asked, measure=True):
        state = _find_answer(beliefs, before, recipe)
        beliefs.read_tokens(ask_reads(recipe.stop, state) & asked, measure=True)
    verdict = _judge(beliefs, state, recipe)
    if not beliefs.read_or_compute(verdict.settled[:, None] & state.masked, measure=True):
        return verdict, state
    state = _find_answer(beliefs, before, recipe)
    beliefs.read_tokens(ask_reads(recipe.stop, state) & asked, measure=True)
    again = _judge(beliefs, state, recipe)
    return again._replace(settled=again.settled & verdict.settled), state


def _find_answer(beliefs: StepBeliefs, state: DecodeState, recipe: Recipe) -> DecodeState:
    """Return the state with the answer that is found in the proposed text, and with its age."""
    beliefs.read_tokens(state.blank & ~state.done[:, None], measure=True)
    found = ask_region(recipe.region, state.with_text(draft=beliefs.tokens))
    same = (found == state.text.found).all(dim=1) & (state.step > 0)
    return state.with_text(found=found, answer_age=torch.where(same, state.answer_age + 1, 0))

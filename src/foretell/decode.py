"""The decode loop: Algorithm 1 of the paper, batched, with every choice delegated to a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.outlook import look_ahead, outlook_of
from foretell.predict import predict
from foretell.prediction import Prediction
from foretell.protocols import Denoiser, Verdict
from foretell.recipe import Recipe
from foretell.settle import settle
from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class Step:
    """What happened to every row during one step; what recorders and streams consume."""

    index: Tensor  # [B] which step of its own this was, from 0
    beliefs: Prediction  # what nobody has read of it by the next step is gone then, with the logits
    draft: Tensor  # [B, N] what each position holds now, or would hold
    answer: Tensor  # [B, N] the region as it was for this step
    unmasked: Tensor  # [B, N] positions filled by this step
    verdict: Verdict  # the stopping rule's; only rows that took part can be settled
    alive: Tensor  # [B] rows that took part
    forced: Tensor  # [B, N] positions filled only because the budget ended: the transfer would have waited

    @property
    def settled(self) -> Tensor:
        """[B] rows committed early by the stopping rule."""
        return self.verdict.settled


def decode(model: Denoiser, state: DecodeState, recipe: Recipe, *, observed: bool = False) -> Iterator[Step]:
    """Denoise `state` in place until no mask is left, yielding after every step."""
    while not all(state.finished):
        step = denoise_step(model, state, recipe, observed=observed)
        yield step
        step.beliefs.release()  # the caller may still hold it, and two steps' logits must not pile up


@torch.inference_mode()
def denoise_step(model: Denoiser, state: DecodeState, recipe: Recipe, *, observed: bool = False) -> Step:
    """Advance every unfinished row by one forward pass.

    Beliefs are made only of what the policies read; an `observed` step makes them of every position.
    """
    view = outlook_of(state, recipe)
    alive, index, eligible = ~state.done, state.step, state.eligible
    beliefs = predict(model, state, recipe, view)

    # Prophet's check comes first: a settled answer ends the refinement of the whole row.
    verdict, answer = settle(beliefs, state, recipe), state.answer
    last = alive & (state.step + 1 >= state.budget)
    commit = verdict.settled | state.checking | last
    rest = commit[:, None] & state.masked
    known = observed or view.ending  # without asking the device
    if known:
        beliefs.complete(rest, measure=observed)
    tokens = beliefs.tokens
    if observed:  # the state learns nothing from being watched
        tokens = tokens.clone()
        beliefs.skim(alive[:, None], measure=True)

    # Otherwise an ordinary refinement step, confined to the current block.
    scores = recipe.score(beliefs, state).masked_fill(~eligible, -torch.inf)
    chosen = recipe.transfer(scores, beliefs, state) & eligible
    unmask = torch.where(commit[:, None], rest, chosen)
    forced = (last & ~verdict.settled & ~state.checking)[:, None] & rest & ~chosen
    doubted = recipe.verify(beliefs, state) if recipe.verify.passes else None

    def fill() -> Tensor:
        if doubted is not None:
            state.look_over(verdict.settled, rest, doubted, recipe.verify.passes)
        return state.reveal(unmask, tokens, alive)

    # Whether a row commits is heard along with the next step's outlook; in the rare step where one does, and was not
    # known to, what it commits is computed and the step filled again.
    before = state.mark()
    filled = fill()
    if look_ahead(state, recipe, commit).settled and not known:
        state.back(before)
        beliefs.complete(rest, measure=False)  # writes to `tokens`
        filled = fill()
        look_ahead(state, recipe)
    draft = torch.where(filled, state.draft, beliefs.tokens) if observed else state.draft
    return Step(index, beliefs, draft, answer, filled, verdict, alive, forced)

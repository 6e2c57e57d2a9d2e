"""The decode loop: Algorithm 1 of the Prophet paper, batched, with every choice delegated to a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from foretell.errors import ModelError, RowsFailedError
from foretell.loop.beliefs import StepBeliefs
from foretell.loop.checks import ask_reads, ask_region, ask_score, ask_stop, ask_transfer, ask_verify
from foretell.loop.forward import run_passes
from foretell.loop.parts import Move, Recheck
from foretell.loop.passes import StepPlan, plan_step
from foretell.loop.protocols import Denoiser, Recipe, Verdict
from foretell.loop.state import DecodeState

NOT_FINITE = (
    "step {step}: a position has no finite best logit, so no token can be chosen there; the model returned NaN or "
    "infinity, or every token is banned"
)


@dataclass(frozen=True, eq=False)
class Step:
    """What one step did to every row. Recorders and streams read it."""

    before: DecodeState  # with the answer region as it was for this step
    beliefs: StepBeliefs  # valid until the next step; statistics that were not read by then are freed with the logits
    verdict: Verdict  # of the stopping rule; only rows that took part can be settled
    move: Move
    after: DecodeState
    ahead: StepPlan  # the plan of the next step
    watched: tuple[int, ...] | None = None  # rows that somebody observes; None: all

    @property
    def settled(self) -> Tensor:
        """[B] rows committed early by the stopping rule."""
        return self.verdict.settled

    @cached_property
    def filled(self) -> Tensor:
        """[B, N] positions that this step filled."""
        return self.before.blank & ~self.after.blank

    @cached_property
    @torch.inference_mode()
    def draft(self) -> Tensor:
        """[B, N] what each position holds now, or would hold if decoding stopped here.

        Reads the beliefs of every position of the watched rows that the step computed. The other rows show only what
        policies have read of them. This does not affect decoding.
        """
        wanted = ~self.before.done
        if self.watched is not None:
            rows = torch.zeros_like(wanted)
            rows[list(self.watched)] = True
            wanted = wanted & rows
        self.beliefs.read_tokens(wanted[:, None], measure=True)
        return torch.where(self.filled, self.after.draft, self.beliefs.tokens)


def decode(model: Denoiser, state: DecodeState, recipe: Recipe) -> Iterator[Step]:
    """Denoise a batch until no mask is left, yielding after every step. The last step's `after` is the result."""
    plan = plan_step(state, recipe)
    while plan.passes:
        step = denoise_step(model, state, recipe, plan)
        yield step
        step.beliefs.release()  # the caller may keep the step, and only one step's logits may be in memory
        state, plan = step.after, step.ahead


@torch.inference_mode()
def denoise_step(model: Denoiser, state: DecodeState, recipe: Recipe, plan: StepPlan | None = None) -> Step:
    """Advance every unfinished row by one forward pass. `plan` is the previous step's `ahead`.

    Raises RowsFailedError if some rows cannot be decoded. `state` is still valid: drop these rows and repeat the step.
    """
    plan = plan or plan_step(state, recipe)
    beliefs = run_passes(model, state, recipe, plan)
    verdict, state = settle(beliefs, state, recipe)  # Prophet's check: is the answer settled?
    move = choose(beliefs, state, recipe, verdict)
    if plan.ending:
        beliefs.read_or_compute(move.fill)
    after = state.apply(move, beliefs.tokens, beliefs.work)
    ahead = plan_step(after, recipe, heard=move.commits, failed=beliefs.failed)  # the only wait for the device
    if ahead.heard and not plan.ending:  # rare: read what the row commits, and fill it from the same state
        beliefs.read_or_compute(move.fill)
        after = state.apply(move, beliefs.tokens, beliefs.work)
        ahead = plan_step(after, recipe, failed=beliefs.failed)
    if ahead.failed:
        raise RowsFailedError({row: ModelError(NOT_FINITE.format(step=int(state.step[row]))) for row in ahead.failed})
    return Step(state, beliefs, verdict, move, after, ahead)


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


def choose(beliefs: StepBeliefs, state: DecodeState, recipe: Recipe, verdict: Verdict) -> Move:
    """Choose what to fill and what to mask again.

    A settled answer, or the end of the budget, fills everything left; in rows with slots, only the slots.
    """
    last = ~state.done & state.last
    commits = verdict.settled | state.checking | last
    rest = commits[:, None] & state.masked & ~state.scratch
    scores = ask_score(recipe.score, beliefs, state).masked_fill(~state.eligible, -torch.inf)
    chosen = ask_transfer(recipe.transfer, scores, beliefs, state) & state.eligible
    forced = (last & ~verdict.settled & ~state.checking)[:, None] & rest & ~chosen
    remask, recheck = review(beliefs, state, recipe, verdict, rest)
    return Move(torch.where(commits[:, None], rest, chosen), commits, forced, remask, recheck)


def review(
    beliefs: StepBeliefs, state: DecodeState, recipe: Recipe, verdict: Verdict, rest: Tensor
) -> tuple[Tensor | None, Recheck]:
    """Choose which positions of an early commit are masked again, and count the passes that are left to check it.

    Rows that settle now get passes. A row is finished once no token is doubted, or when it has too few passes left to
    mask tokens and fill them again.
    """
    recheck, passes = state.recheck, recipe.verify.passes
    if not passes:
        return None, recheck
    granted = (state.budget - state.step - 1).clamp(max=passes)
    left = torch.where(verdict.settled, granted, (recheck.left - 1).clamp(min=0))
    doubted = ask_verify(recipe.verify, beliefs, state) & recheck.committed & ~state.blank
    remask = doubted & (state.checking & (left > 0))[:, None]
    through = state.checking & ~remask.any(dim=1) & ((left < 2) | ~state.blank.any(dim=1))
    committed = recheck.committed | (verdict.settled[:, None] & rest)
    return remask, Recheck(committed, torch.where(through, 0, left))

"""What an engine returns: completions, failures, and one frame per step of a stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import torch

from foretell.engine.codec import Codec
from foretell.engine.outcome import Finish, Outcome
from foretell.engine.request import Layout, Request, lay_out
from foretell.engine.trace import Trace, with_words
from foretell.errors import ForetellError, RowsFailedError
from foretell.loop.checks import ask_region
from foretell.loop.decode import Step
from foretell.loop.spelling import Spelling
from foretell.policies.transfer.quota import Quota
from foretell.recipes.text import name_of

NO_MASK = -1  # a finished window holds no mask


@dataclass(frozen=True, slots=True)
class Completion:
    """One decoded text, and the work that it took."""

    text: str  # empty without a tokenizer
    answer: str | None  # the text of the answer region, if one was declared or found
    tokens: tuple[int, ...]  # the whole window
    response_tokens: int  # number of tokens of the text, up to its end
    prompt_tokens: int
    steps: int  # steps taken
    budget: int  # steps allowed
    forwards: int  # forward passes
    finish: Finish  # "settled" (early commit), "eos" (the text ended) or "complete" (no mask was left)
    seconds: float
    columns_needed: int = 0  # columns that the forward passes had to compute
    columns_computed: int = field(default=0, compare=False)  # the same with padding, which depends on the batch
    exit: int | None = None  # the step, from 0, at which the stopping rule settled
    value: float | None = None  # what the stopping rule measured at that step
    measure: str | None = None  # the name of that measure, e.g. "mean gap"
    trace: Trace | None = None
    notes: tuple[str, ...] = ()
    given: int = 0  # steps of the budget that were not needed, because positions of the window were pinned
    stop_string: str | None = None  # the stop string at which the text was cut
    fills: tuple[str, ...] = ()  # the text of each run of masks, if a text was filled in place
    generated: tuple[int, ...] = ()  # tokens that were not pinned, up to and including the end of the text

    @property
    def saved(self) -> int:
        """Steps saved, compared with the same decoding without early stopping or parallel filling."""
        return max(0, self.budget - self.given - self.steps)

    @property
    def tokens_per_forward(self) -> float:
        return self.response_tokens / self.forwards


@dataclass(frozen=True, slots=True)
class Failure:
    """Returned instead of a completion if a request cannot be decoded. Other requests are not affected."""

    error: ForetellError

    def __str__(self) -> str:
        return str(self.error)


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of a stream. The last frame has the completion."""

    step: int  # from 0
    budget: int
    tokens: tuple[int, ...]  # [N] the draft
    filled: tuple[bool, ...]  # [N] positions that hold no mask
    fresh: tuple[bool, ...]  # [N] positions that this step filled
    pinned: tuple[bool, ...]  # [N]
    answer: tuple[bool, ...]  # [N]
    settled: bool  # whether this step committed early
    gauge: tuple[float, float] | None  # the value that the stopping rule measured, and the bar it is compared with
    measure: str = "gap"  # the name of that value
    progress: float = 0.0  # from 0 to 1, by the clock of the stopping rule; without a rule, by steps
    text: str = ""  # the text of the draft
    completion: Completion | None = None

    def without_padding(self, padding: int) -> Frame:
        """Return a frame without the first `padding` positions."""
        grids = ("tokens", "filled", "fresh", "pinned", "answer")
        return replace(self, **{name: getattr(self, name)[padding:] for name in grids})


def generated_tokens(tokens: Sequence[int], layout: Layout, end_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of a window that were not pinned, up to the first of `end_ids` after all pins, with it."""
    pinned, size = {offset for offset, _ in layout.pins}, end_of(tokens, layout, end_ids) + 1
    return tuple(token for at, token in enumerate(tokens[:size]) if at not in pinned)


def text_of(tokens: Sequence[int], layout: Layout, codec: Codec) -> tuple[str, int]:
    """Return the text of a window and the number of its tokens, up to the first end token after all pins."""
    kept = tokens[: end_of(tokens, layout, codec.end_ids)]
    return codec.decode(kept), sum(token not in codec.end_ids for token in kept)


def cut_text(text: str, stop_strings: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before its first stop string, and that string; the whole text and None if it has none."""
    found = [(text.find(one), one) for one in stop_strings if one in text]
    if not found:
        return text, None
    place, string = min(found, key=itemgetter(0))
    return text[:place], string


def count_tokens(text: str, tokens: Sequence[int], codec: Codec) -> int:
    """Return how many of `tokens`, without ends, spell `text`, which is the beginning of their text.

    White space is ignored, because decoders put spaces between two tokens depending on what follows.
    """

    def holds_text(count: int) -> bool:
        return _without_blanks(codec.decode(tokens[:count])).startswith(_without_blanks(text))

    size = bisect_left(range(len(tokens)), True, key=holds_text)
    return sum(token not in codec.end_ids for token in tokens[:size])


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def end_of(tokens: Sequence[int], layout: Layout, end_ids: Sequence[int]) -> int:
    """Return the place of the first end token after all pins; the length of the window if there is none."""
    last_pin = max((offset for offset, _ in layout.pins), default=-1)
    ends = (i for i, token in enumerate(tokens) if token in end_ids and i > last_pin)
    return next(ends, len(tokens))


def completion_of(
    outcome: Outcome, notes: tuple[str, ...], codec: Codec, spelling: Spelling, stop_strings: Sequence[str] = ()
) -> Completion:
    """Return the completion of an outcome. Its text and its answer are each cut before their first stop string."""
    request, tokens = outcome.request, outcome.tokens
    whole, size = text_of(tokens, request.layout, codec)
    text, stop_string = cut_text(whole, stop_strings)
    answer = answer_of(tokens, request, codec, spelling)
    return Completion(
        text=text,
        answer=answer and cut_text(answer, stop_strings)[0],
        tokens=tokens,
        response_tokens=size if stop_string is None else count_tokens(text, tokens, codec),
        prompt_tokens=len(request.prompt),
        steps=outcome.steps,
        budget=request.budget,
        forwards=outcome.forwards,
        columns_needed=outcome.usage.columns_needed,
        columns_computed=outcome.usage.columns_computed,
        exit=outcome.exit,
        finish=outcome.finish,
        seconds=outcome.seconds,
        value=outcome.value,
        measure=outcome.measure,
        trace=outcome.trace and with_words(outcome.trace, spelling),
        notes=(*notes, *_budget_notes(outcome)),
        given=request.budget - scheduled_steps(request),
        stop_string=stop_string,
        generated=generated_tokens(tokens, request.layout, codec.end_ids),
    )


def _budget_notes(outcome: Outcome) -> Iterator[str]:
    """Yield a note if the budget, and not the transfer, decided what was filled."""
    if outcome.forced:
        request, rule = outcome.request, name_of(outcome.request.recipe.transfer)
        yield (
            f"the budget of {request.budget} steps ended before {rule} had filled the text, "
            f"so the last step committed {outcome.forced} of {request.layout.length} tokens that the rule would have "
            "left for later; allow more steps (default: one per position)"
        )


def scheduled_steps(request: Request) -> int:
    """Return the number of steps that the schedule takes without stopping early; pinned positions take none."""
    layout, transfer = request.layout, request.recipe.transfer
    pinned, size = {offset for offset, _ in layout.pins}, request.recipe.block_length or layout.length
    steps = due = 0
    for start in range(0, layout.length, size):
        end = min(start + size, layout.length)
        masks = sum(at not in pinned for at in range(start, end))
        if masks and isinstance(transfer, Quota) and transfer.idle:
            steps = max(steps, due)
        due = -(-end * request.budget // layout.length)  # rounded up, as `DecodeState.due` does
        steps += min(masks, due - steps)
    return steps


def answer_of(tokens: Sequence[int], request: Request, codec: Codec, spelling: Spelling) -> str | None:
    """Return the text in the answer region of a finished window, or None if there is no region."""
    if request.recipe.region.sought:
        state = lay_out([request], NO_MASK, codec.end_ids, spelling=spelling)
        try:
            place = ask_region(request.recipe.region, state.with_text(draft=torch.tensor([tokens])))[0].tolist()
        except RowsFailedError as failed:
            raise failed.first from failed
        found = [token for token, inside in zip(tokens, place, strict=True) if inside]
        return codec.decode(found).strip() if found else None
    if request.layout.answer is None or not codec.reads_text:
        return None
    start, length = request.layout.answer
    return codec.decode(tokens[start : min(start + length, end_of(tokens, request.layout, codec.end_ids))])


def frame_of(step: Step, row: int) -> Frame:
    """Return what a step did to one `row` of the batch."""
    state = step.after
    value, bar, progress = step.verdict.value, step.verdict.bar, step.verdict.progress
    return Frame(
        step=int(step.before.step[row]),
        budget=int(state.budget[row]),
        tokens=tuple(step.draft[row].tolist()),
        filled=tuple((~state.blank[row]).tolist()),
        fresh=tuple(step.filled[row].tolist()),
        pinned=tuple(state.pinned[row].tolist()),
        answer=tuple(step.before.answer[row].tolist()),
        settled=bool(step.settled[row]),
        gauge=None if value is None or bar is None else (float(value[row]), float(bar[row])),
        measure=step.verdict.measure,
        progress=float(step.before.step[row] / state.budget[row] if progress is None else progress[row]),
    )

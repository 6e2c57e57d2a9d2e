"""What a window looks like before decoding: which tokens are pinned, and where the answer goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from foretell.errors import LayoutError, RequestError
from foretell.recipe import Recipe
from foretell.state import EVER, DecodeState
from foretell.words import Words


@dataclass(frozen=True, slots=True)
class Layout:
    """N positions, some of them pinned to a token in advance, some of them the answer region.

    [question] [MASK ... reasoning ... MASK] [The answer is] [MASK ... answer ... MASK]
               |<------------------------ length N ----------------------------------->|
    """

    length: int
    pins: tuple[tuple[int, int], ...] = ()  # (offset, token id), by offset
    answer: tuple[int, int] | None = None  # (offset, length)

    def __post_init__(self) -> None:
        if self.length < 1:
            raise LayoutError(f"a window must have at least 1 position, got {self.length}")
        offsets = [offset for offset, _ in self.pins]
        if offsets != sorted(set(offsets)):
            raise LayoutError(f"pinned offsets must rise and not repeat, got {offsets}")
        if offsets and not (offsets[0] >= 0 and offsets[-1] < self.length):
            raise LayoutError(
                f"pinned offsets must lie in 0..{self.length - 1}, got {offsets[0] if offsets[0] < 0 else offsets[-1]}"
            )
        if len(offsets) == self.length:
            raise LayoutError(f"all {self.length} positions are pinned: there is nothing to decode")
        if self.answer is not None and not (
            self.answer[0] >= 0 and 1 <= self.answer[1] <= self.length - self.answer[0]
        ):
            raise LayoutError(
                f"an answer of {self.answer[1]} tokens at {self.answer[0]} does not fit a window of {self.length}"
            )

    @classmethod
    def with_suffix(cls, length: int, suffix: Sequence[int], answer_length: int, start: int | None = None) -> Layout:
        """`suffix` pinned right before an answer of `answer_length` tokens, at the window's end or at `start`."""
        first = length - answer_length if start is None else start
        if first < len(suffix):
            raise LayoutError(
                f"a suffix of {len(suffix)} and an answer of {answer_length} tokens do not fit a window of {length}"
                + ("" if start is None else f" with the answer at {start}")
            )
        pins = tuple((first - len(suffix) + i, token) for i, token in enumerate(suffix))
        return cls(length, pins, (first, answer_length))


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, already tokenized, and how to decode it."""

    prompt: tuple[int, ...]
    layout: Layout
    recipe: Recipe = Recipe()
    seed: int = 0

    @property
    def budget(self) -> int:
        """T_max: the recipe's steps, or one for every position of the window."""
        return self.recipe.steps or self.layout.length

    @property
    def kind(self) -> tuple[Recipe, int]:
        """What the requests of one batch have in common: the recipe without its steps, and the window's length."""
        return replace(self.recipe, steps=None), self.layout.length


def lay_out(
    requests: Sequence[Request],
    mask_id: int,
    end_ids: tuple[int, ...] = (),
    device: torch.device | str = "cpu",
    words: Words | None = None,
) -> DecodeState:
    """A fresh state for requests of one `kind`."""
    recipe, length = requests[0].kind
    if any(r.kind != (recipe, length) for r in requests):
        raise LayoutError(
            "the requests of one batch must share their window length, and their recipe but for its steps"
        )
    if recipe.region.sought and words is None:
        raise RequestError(f"{recipe.region} looks for the answer in the text; say how tokens are written, with words=")
    rows, width = len(requests), max(len(r.prompt) for r in requests) + length
    canvas = torch.full((rows, width), mask_id)
    valid = torch.ones(rows, width, dtype=torch.bool)
    pinned = torch.zeros(rows, length, dtype=torch.bool)
    answer = torch.zeros(rows, length, dtype=torch.bool)
    for row, request in enumerate(requests):
        start = width - length - len(request.prompt)
        canvas[row, :start], valid[row, :start] = 0, False
        canvas[row, start : width - length] = torch.tensor(request.prompt, dtype=torch.long)
        for offset, token in request.layout.pins:
            canvas[row, width - length + offset], pinned[row, offset] = token, True
        if request.layout.answer is not None:
            offset, size = request.layout.answer
            answer[row, offset : offset + size] = True
    answer &= ~pinned
    return DecodeState(
        canvas=canvas.to(device),
        valid=valid.to(device),
        pinned=pinned.to(device),
        answer=answer.to(device),
        draft=canvas[:, width - length :].to(device, copy=True),
        unchanged=torch.zeros(rows, length, dtype=torch.long, device=device),
        stayed=torch.full((rows,), 0 if recipe.region.sought else EVER, dtype=torch.long, device=device),
        step=torch.zeros(rows, dtype=torch.long, device=device),
        budget=torch.tensor([r.budget for r in requests], dtype=torch.long, device=device),
        seed=torch.tensor([r.seed for r in requests], dtype=torch.long, device=device),
        forwards=torch.zeros(rows, dtype=torch.long, device=device),
        computed=torch.zeros(rows, dtype=torch.long, device=device),
        spent=torch.zeros(rows, dtype=torch.long, device=device),
        cached_block=torch.full((rows,), -1, device=device),
        cached_step=torch.zeros(rows, dtype=torch.long, device=device),
        held=torch.zeros(rows, length, dtype=torch.bool, device=device),
        current=torch.zeros(rows, length, dtype=torch.bool, device=device),
        hasty=torch.zeros(rows, length, dtype=torch.bool, device=device),
        checks=torch.zeros(rows, dtype=torch.long, device=device),
        block_length=recipe.block_length or length,
        mask_id=mask_id,
        end_ids=end_ids,
        stop_at_eos=recipe.stop_at_eos,
        paced=not recipe.transfer.parallel,
        words=words,
    )

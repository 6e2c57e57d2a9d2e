"""Requests and their layout: which tokens of a window are pinned, and where the answer is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor

from foretell.errors import LayoutError, RequestError, show
from foretell.loop.parts import ALWAYS, Ledger, Meters, Recheck, Rows, Text
from foretell.loop.slots import Slot
from foretell.loop.spelling import Spelling
from foretell.loop.state import DecodeState
from foretell.recipes.recipe import Recipe

LONGEST = 1 << 20  # positions of a window


@dataclass(frozen=True, slots=True)
class Layout:
    """A window of N positions: which of them are pinned to a token in advance, and which are the answer region.

    [question] [MASK ... reasoning ... MASK] [The answer is] [MASK ... answer ... MASK]
               |<------------------------ length N ----------------------------------->|
    """

    length: int
    pins: tuple[tuple[int, int], ...] = ()  # (offset, token id), sorted by offset
    answer: tuple[int, int] | None = None  # (offset, length)
    padding: int = 0  # number of first positions that are pinned and not part of the text; only without a prompt
    slots: tuple[Slot, ...] = ()  # sorted by offset; if there are any, other positions need not be filled

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LONGEST:
            raise LayoutError(f"a window must have from 1 to {LONGEST} positions, got {show(self.length)}")
        offsets = [offset for offset, _ in self.pins]
        if offsets != sorted(set(offsets)):
            raise LayoutError(f"pinned offsets must be sorted and unique, got {show(offsets)}")
        if offsets and not (offsets[0] >= 0 and offsets[-1] < self.length):
            raise LayoutError(
                f"pinned offsets must lie in 0..{self.length - 1}, got "
                f"{show(offsets[0] if offsets[0] < 0 else offsets[-1])}"
            )
        if not 0 <= self.padding <= len(offsets) or offsets[: self.padding] != list(range(self.padding)):
            raise LayoutError(f"the padding, the first {show(self.padding)} positions, must be pinned")
        if len(offsets) == self.length:
            raise LayoutError(f"all {self.length} positions are pinned: there is nothing to decode")
        if self.answer is not None and not (
            self.answer[0] >= 0 and 1 <= self.answer[1] <= self.length - self.answer[0]
        ):
            raise LayoutError(
                f"an answer of {show(self.answer[1])} tokens at {show(self.answer[0])} does not fit a window of "
                f"{self.length}"
            )
        self._check_slots({*offsets})

    def _check_slots(self, pinned: set[int]) -> None:
        end = 0
        for slot in self.slots:
            if slot.offset < end or slot.end > self.length:
                raise LayoutError(
                    f"the slot of {slot.length} positions at {slot.offset} overlaps another one, is not in order, or "
                    f"does not fit a window of {self.length}"
                )
            taken = pinned.intersection(range(slot.offset, slot.end))
            if taken:
                raise LayoutError(f"position {min(taken)} is pinned, but a slot needs it too")
            end = slot.end

    @classmethod
    def with_suffix(cls, length: int, suffix: Sequence[int], answer_length: int, start: int | None = None) -> Layout:
        """Pin `suffix` right before an answer of `answer_length` tokens, at the window's end or at `start`."""
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
    """A tokenized prompt, and how to decode it."""

    prompt: tuple[int, ...]
    layout: Layout
    recipe: Recipe = Recipe()
    seed: int = 0

    @property
    def budget(self) -> int:
        """T_max: the recipe's steps, or one per position of the window."""
        return self.recipe.steps or self.layout.length

    @property
    def kind(self) -> tuple[Recipe, int]:
        """What the requests of one batch have in common: the recipe without its steps, and the window's length."""
        recipe = self.recipe if self.recipe.steps is None else replace(self.recipe, steps=None)
        return recipe, self.layout.length


def derive_seed(seed: int, prompt: Iterable[int]) -> int:
    """Return the seed of a row, a hash of the call's seed and the prompt's tokens.

    So the random numbers of a row do not depend on its batch, its place in a list, or the id of an example. Different
    prompts get different random numbers, and equal prompts get equal ones.
    """
    return int.from_bytes(blake2b(str([seed, *prompt]).encode(), digest_size=8).digest(), "big") >> 1  # an int64


def lay_out(
    requests: Sequence[Request],
    mask_id: int,
    end_ids: tuple[int, ...] = (),
    device: torch.device | str = "cpu",
    spelling: Spelling | None = None,
) -> DecodeState:
    """Return a fresh state for requests of one `kind`. Regions that are found in the text need a `spelling`."""
    recipe, length = requests[0].kind
    if any(request.kind != (recipe, length) for request in requests):
        raise LayoutError(
            "the requests of one batch must share their window length, and their recipe except for its steps"
        )
    if recipe.region.sought and spelling is None:
        raise RequestError(
            f"{recipe.region} finds the answer in the text; give spelling=, which says how tokens are written"
        )
    count, width = len(requests), max(len(request.prompt) for request in requests)
    prompt = torch.zeros(count, width, dtype=torch.long)
    window = torch.full((count, length), mask_id)
    valid = torch.ones(count, width + length, dtype=torch.bool)
    pinned, declared, slotted = (torch.zeros(count, length, dtype=torch.bool) for _ in range(3))
    for row, request in enumerate(requests):
        start = width - len(request.prompt)
        valid[row, : start + request.layout.padding] = False
        prompt[row, start:] = torch.tensor(request.prompt, dtype=torch.long)
        for offset, token in request.layout.pins:
            window[row, offset], pinned[row, offset] = token, True
        if request.layout.answer is not None:
            offset, size = request.layout.answer
            declared[row, offset : offset + size] = True
        for slot in request.layout.slots:
            slotted[row, slot.offset : slot.end] = declared[row, slot.offset : slot.end] = True

    def per_row(value: int | bool, *shape: int) -> Tensor:
        return torch.full((count, *shape), value, device=device)

    rows = Rows(
        prompt=prompt.to(device),
        valid=valid.to(device),
        pinned=pinned.to(device),
        declared=declared.to(device),
        slotted=slotted.to(device),
        budget=torch.tensor([request.budget for request in requests], device=device),
        seed=torch.tensor([request.seed for request in requests], device=device),
        slots=tuple(request.layout.slots for request in requests),
        region=recipe.region,
        block_length=recipe.block_length or length,
        mask_id=mask_id,
        end_ids=end_ids,
        stop_at_eos=recipe.stop_at_eos,
        paced=not recipe.transfer.parallel,
        spelling=spelling,
    )
    text = Text(
        window=window.to(device),
        draft=window.to(device),
        unchanged=per_row(0, length),
        found=per_row(False, length),
        answer_age=per_row(0 if recipe.region.sought else ALWAYS),
        step=per_row(0),
    )
    return DecodeState(
        rows=rows,
        text=text,
        ledger=Ledger(per_row(False, length), per_row(False, length), block=per_row(-1), step=per_row(0)),
        recheck=Recheck(per_row(False, length), left=per_row(0)),
        meters=Meters(per_row(0), per_row(0), per_row(0)),
    )

"""The forward passes of a decoding: how many rows and columns each one has, recorded while the real loop runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from foretell.engine.request import Layout, Request, lay_out
from foretell.errors import RequestError, within
from foretell.loop.decode import decode
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Beliefs, Denoiser, Inputs, Readout, Stop, Verdict
from foretell.loop.view import StateView
from foretell.policies.stop.never import Never
from foretell.recipes.recipe import Recipe

_VOCABULARY = 8  # of the blank model
_SURE = 30.0  # lead of the favoured token where the blank model is sure


@dataclass(frozen=True, slots=True)
class Pass:
    """The size of one forward pass."""

    rows: int
    columns: int  # computed per row
    attended: int  # columns that each of them attends to, per row
    stored: bool  # whether keys and values are stored
    whole: bool  # whether the prompt is computed as well, and not only a part of the window
    read: int = 0  # positions of all rows whose logits are computed


@dataclass(slots=True)
class PassRecorder:
    """A denoiser that records the sizes of its passes."""

    inner: Denoiser
    _sizes: list[tuple[Pass, list[int]]] = field(default_factory=list, init=False)  # with the positions read so far

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    def __call__(self, inputs: Inputs) -> Readout:
        rows, columns = inputs.columns.shape
        stored, count = inputs.cache is not None, list[int]()
        attended = inputs.attend.shape[1] if stored else columns
        self._sizes.append((Pass(rows, columns, attended, stored, _is_whole(inputs)), count))
        readout = self.inner(inputs)

        def read(row: Tensor, at: Tensor) -> Tensor:
            count.append(len(row))
            return readout(row, at)

        return read

    def new_cache(self, batch: int, length: int) -> KVStore:
        return self.inner.new_cache(batch, length)

    def take(self) -> tuple[Pass, ...]:
        """Return the passes since the last call, with the positions that have been read by now."""
        taken = tuple(replace(one, read=sum(count)) for one, count in self._sizes)
        self._sizes.clear()
        return taken


def _is_whole(inputs: Inputs) -> bool:
    """Return whether a pass computes the prompt. A prompt of one column is computed with its neighbour by a shift."""
    rows, columns = inputs.columns.shape
    if inputs.prompt < 2 or not rows:
        return inputs.cache is None or columns >= inputs.attend.shape[1]
    return int((inputs.columns[0] < inputs.prompt).sum()) == inputs.prompt


def dry_run(
    recipe: Recipe,
    prompt: int,
    window: int,
    answer: int,
    tokens_per_step: float = 1.0,
    steps: int | None = None,
    wrap: Callable[[Denoiser], Denoiser] = lambda model: model,
) -> tuple[tuple[Pass, ...], ...]:
    """Return the passes of every step of one row, without a model.

    The loop runs with a blank model in place of the real one. It is sure of `tokens_per_step` masks in each pass, which
    matters only for parallel transfers, and the stopping rule settles in step number `steps` (None: never).
    `wrap` is that of the model's family.
    """
    within("tokens per step", tokens_per_step, 1.0, window, RequestError)
    if tokens_per_step != 1 and not recipe.transfer.parallel:
        raise RequestError("tokens per step are for parallel transfers; with this recipe, the number of steps decides")
    if steps is not None and recipe.stop == Never():
        raise RequestError("this recipe has no stopping rule, so its requests take all their steps")
    if recipe.region.sought:
        recipe = replace(recipe, region=Recipe().region)  # there is no text to search
    scripted = replace(recipe, stop=_Scripted(recipe.stop, steps or 0))
    recorder = PassRecorder(_Blank(tokens_per_step))
    layout = Layout(window, answer=(window - answer, answer) if answer else None)
    state = lay_out([Request((1,) * prompt, layout, scripted)], recorder.mask_id)
    return tuple(recorder.take() for _ in decode(wrap(recorder), state, scripted))


@dataclass(frozen=True, slots=True)
class _Scripted:
    """A stopping rule that reads what another one reads, and settles in a given step (0: never)."""

    inner: Stop
    steps: int

    def reads(self, state: StateView) -> Tensor:
        return self.inner.reads(state)

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:  # noqa: ARG002
        return Verdict(state.step + 1 == self.steps)


class _NoStore:
    """Implements `parts.KVStore` and stores nothing."""

    def view(self, rows: Tensor | None) -> KVStore:  # noqa: ARG002
        return self

    def keep(self, rows: object) -> None:
        """Nothing is stored."""

    def grow(self, rows: int, columns: int) -> None:
        """Nothing is stored."""

    def trim(self, columns: int) -> None:
        """Nothing is stored."""


@dataclass(slots=True)
class _Blank:
    """Implements `protocols.Denoiser` without a network: sure of the first few masks of every pass over one row."""

    tokens_per_step: float
    mask_id: int = 0
    _calls: int = field(default=0, init=False)

    def __call__(self, inputs: Inputs) -> Readout:  # noqa: ARG002
        before, self._calls = self._calls, self._calls + 1
        sure = int(self._calls * self.tokens_per_step) - int(before * self.tokens_per_step)

        def read(row: Tensor, at: Tensor) -> Tensor:  # noqa: ARG001
            logits = torch.zeros(len(row), _VOCABULARY)
            logits[:sure, 1] = _SURE
            return logits

        return read

    def new_cache(self, batch: int, length: int) -> KVStore:  # noqa: ARG002
        return _NoStore()

"""The questions a decoder asks at every step, and the model that it asks them about.

Shapes: B rows, N generated positions, L = prompt + N canvas columns, V vocabulary; one forward pass
computes q columns of b rows. A policy reads and answers; only `decode.denoise_step` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from foretell.state import DecodeState, KVStore, Plan

Change = Callable[[Tensor], Tensor]  # logits [n, V] -> logits [n, V]


class Inputs(NamedTuple):
    """One forward pass over b rows: compute q columns, attend to every valid one of L."""

    canvas: Tensor  # [b, L] token ids
    places: Tensor  # [b, L] place of each column in its own text
    keys: Tensor  # [b, L] columns that may be attended
    columns: Tensor  # [b, q] columns to compute; without a cache only these exist
    asked: Tensor  # [b, w] which of those q may be asked for logits
    cache: KVStore | None = None
    prompt: int = 0  # columns in front of the window, padding included
    read: Tensor | None = None  # [b, w] which of the asked columns anyone reads; None: all of them
    pinned: Tensor | None = None  # [b, N] window positions that the request fixed in advance; None: none


class Readout(Protocol):
    """The outcome of a forward pass, before the head: logits cost time and memory, so they are made on demand."""

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        """Logits [n, V] for the clean token at the asked columns `at` [n] of pass rows `row` [n]."""


@runtime_checkable
class Precise(Protocol):
    """A readout that can say a few logits in float32 where all of them come in half precision.

    There the gap of two logits is a multiple of 1/16 or so, and a threshold means something else than it says.
    """

    def precise(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        """Logits [n, k] of `tokens` [n, k]."""


class Denoiser(Protocol):
    """A diffusion language model, seen as a function from a noisy canvas to logits."""

    @property
    def mask_id(self) -> int: ...

    def __call__(self, inputs: Inputs) -> Readout: ...

    def new_cache(self, batch: int, length: int) -> KVStore:
        """An empty store for `batch` rows of `length` columns; a `ModelError` where the model keeps none."""


class Beliefs(Protocol):
    """What the model believes at one step, reduced to what policies read. All [B, N].

    Computed from logits while decoding (`Prediction`), or read back from a stored trace.
    """

    @property
    def tokens(self) -> Tensor: ...

    @property
    def confidence(self) -> Tensor: ...

    @property
    def gap(self) -> Tensor: ...

    @property
    def margin(self) -> Tensor: ...

    @property
    def entropy(self) -> Tensor: ...


class LogitBeliefs(Beliefs, Protocol):
    """Beliefs whose logits still exist: what a score reads while decoding."""

    def transform(self, change: Change) -> LogitBeliefs:
        """The same proposals, with the statistics of changed logits.

        Positions that a policy reads have them; others report the least possible certainty.
        """


class Cache(Protocol):
    """Which positions are recomputed, and which are only read, or ignored?"""

    @property
    def stores(self) -> bool:
        """Whether keys and values are kept between steps at all."""

    def __call__(self, state: DecodeState) -> Plan: ...


class Window(Protocol):
    """Which positions are looked at, and which are left out of the pass as if they did not exist?

    Filled positions and whatever a policy reads are looked at in any case.
    """

    def __call__(self, state: DecodeState) -> Tensor | None:
        """Bool [B, N]; None is all of them."""


class Logits(Protocol):
    """The logits of n positions; what one policy has worked out of them, the next one need not."""

    @property
    def values(self) -> Tensor:
        """[n, V]"""

    @property
    def best(self) -> Tensor:
        """The best token of each position, the first of equals. [n]"""


class Sample(Protocol):
    """Which token is proposed at each position?"""

    def __call__(self, logits: Logits, state: DecodeState, row: Tensor, position: Tensor) -> Tensor:
        """Token ids [n] from logits that belong to `position` [n] of the state's rows `row` [n]."""


class Region(Protocol):
    """Where is the answer?"""

    @property
    def sought(self) -> bool:
        """Whether it is looked for in the text of `state.draft`, and not known beforehand.

        Every mask that a step computes is read for it then, and it is found anew in what they propose.
        """

    def __call__(self, state: DecodeState) -> Tensor:
        """Bool [B, N], true on the answer region."""


class Score(Protocol):
    """How sure are we of each position?  (the paper's remasking strategy)"""

    def __call__(self, beliefs: LogitBeliefs, state: DecodeState) -> Tensor:
        """Float [B, N]; higher means unmask sooner."""


class Transfer(Protocol):
    """Which masks are filled now?  (sequential or parallel decoding)"""

    @property
    def parallel(self) -> bool:
        """Whether the model decides how many are filled per step.

        Then steps do not measure progress, blocks have no deadlines, and the step budget is only a limit.
        """

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: DecodeState) -> Tensor:
        """Bool [B, N], a subset of `state.eligible`. `scores` is -inf elsewhere."""


class Verdict(NamedTuple):
    """A stopping rule's answer; a rule that compares one number with a bar shows them. [B] each"""

    settled: Tensor
    value: Tensor | None = None  # what the rule watches
    bar: Tensor | None = None  # what that has to reach
    measure: str = "gap"  # what the value is called
    progress: Tensor | None = None  # p at which the bar was taken, where it depends on one


class Stop(Protocol):
    """Is the answer settled, so that everything left can be committed at once?"""

    def reads(self, state: DecodeState) -> Tensor:
        """Bool [B, N]: the positions whose beliefs the rule looks at. Nothing else is computed for it."""

    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Verdict: ...


@runtime_checkable
class FromFile(Protocol):
    """A stopping rule of which a part stands in a file and is read when it is first needed.

    So the rule of a stored trace can be named without it.
    """

    def read_file(self) -> None:
        """Read it now; an error unless it is there and the one that is meant."""


class Verify(Protocol):
    """After an early commit: what has to be written again?"""

    @property
    def passes(self) -> int:
        """How many passes may be spent on looking over a commit; 0 for none."""

    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Tensor:
        """Bool [B, N]: committed positions to mask again, seen in a pass over the whole text."""

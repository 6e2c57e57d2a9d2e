"""The contracts of the loop: the questions it asks at every step, the answers, and the model it runs.

Shapes: B rows, N generated positions, L = prompt + N canvas columns, V vocabulary; one forward pass
computes q columns of b rows. Policies read a `StateView` and answer; they write nothing and keep no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from foretell.loop.parts import KVStore, Plan
from foretell.loop.view import StateView

Change = Callable[[Tensor], Tensor]  # logits [n, V] -> logits [n, V]


class Inputs(NamedTuple):
    """One forward pass over b rows: compute q of L columns."""

    canvas: Tensor  # [b, L] token ids
    positions: Tensor  # [b, L] position of each column in its own text
    attend: Tensor  # [b, L] columns that may be attended
    columns: Tensor  # [b, q] columns to compute; without a cache only these exist
    wanted: Tensor  # [b, w] which of those q columns may be read
    cache: KVStore | None = None
    prompt: int = 0  # columns before the window, with padding
    read: Tensor | None = None  # [b, w] which of the wanted columns are read; None means all of them
    pinned: Tensor | None = None  # [b, N] window positions that the request fixed in advance; None means none


class Readout(Protocol):
    """The output of a forward pass before the head. Logits cost time and memory, so they are computed on demand."""

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        """Return logits [n, V] for the clean token at wanted columns `at` [n] of pass rows `row` [n]."""


@runtime_checkable
class Precise(Protocol):
    """A readout that can compute a few logits in float32 although the model runs in half precision.

    In half precision the gap of two logits is a multiple of about 1/16, too coarse for a threshold.
    """

    def precise(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits [n, k] of `tokens` [n, k]."""


@runtime_checkable
class Selective(Protocol):
    """A readout that can compute the logits of a few tokens without those of the rest of the vocabulary."""

    def select(self, row: Tensor, at: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits [n, k] of `tokens` [k] at each of the n positions, in float32 or better."""


class Denoiser(Protocol):
    """A diffusion language model: a function from a noisy canvas to logits."""

    @property
    def mask_id(self) -> int: ...

    def __call__(self, inputs: Inputs) -> Readout: ...

    def new_cache(self, batch: int, length: int) -> KVStore:
        """Return an empty store for `batch` rows of `length` columns. Raises ModelError if the model has no cache."""


class Beliefs(Protocol):
    """What the model believes at one step, reduced to what policies read. All [B, N].

    Computed from logits while decoding (`StepBeliefs`), or read back from a stored trace.
    """

    @property
    def tokens(self) -> Tensor:
        """The proposed tokens."""

    @property
    def confidence(self) -> Tensor:
        """Probability of the proposed token."""

    @property
    def gap(self) -> Tensor:
        """Best logit minus second best."""

    @property
    def margin(self) -> Tensor:
        """Best probability minus second best."""

    @property
    def entropy(self) -> Tensor:
        """Entropy in nats."""


class LogitBeliefs(Beliefs, Protocol):
    """Beliefs whose logits still exist: what a score reads while decoding."""

    def transform(self, change: Change) -> LogitBeliefs:
        """Return the same proposals with the statistics of changed logits.

        Only positions that a policy reads have statistics; others report the least possible certainty.
        """


class Cache(Protocol):
    """Which positions are recomputed, which are only attended, and which are ignored?"""

    @property
    def stores(self) -> bool:
        """Whether keys and values are kept between steps."""

    def __call__(self, state: StateView) -> Plan: ...


class Visible(Protocol):
    """Which positions exist for a pass? The others are left out of it.

    Filled positions and those that a policy reads are always visible.
    """

    def __call__(self, state: StateView) -> Tensor | None:
        """Return bool [B, N]; None means all positions."""


class Logits(Protocol):
    """The logits of n positions. Results that one policy computes are shared with the others."""

    @property
    def values(self) -> Tensor:
        """[n, V]"""

    @property
    def best(self) -> Tensor:
        """[n] the best token of each position; ties go to the first."""


class Sample(Protocol):
    """Which token is proposed at each position?"""

    def __call__(self, logits: Logits, state: StateView, row: Tensor, position: Tensor) -> Tensor:
        """Return token ids [n]; the logits belong to `position` [n] of the state's rows `row` [n]."""


class Region(Protocol):
    """Where is the answer?"""

    @property
    def sought(self) -> bool:
        """Whether the answer is searched for in the text of `state.draft` (its place is not known in advance).

        Then every mask that a step computes is read, and the answer is searched for in the proposed tokens.
        """

    def __call__(self, state: StateView) -> Tensor:
        """Return bool [B, N], true on the answer region."""


class Score(Protocol):
    """How sure are we of each position? (the paper's remasking strategy)"""

    def __call__(self, beliefs: LogitBeliefs, state: StateView) -> Tensor:
        """Return floats [B, N]; higher means fill sooner."""


class Transfer(Protocol):
    """Which masks are filled now? (sequential or parallel decoding)"""

    @property
    def parallel(self) -> bool:
        """Whether the model decides how many are filled per step.

        Then steps do not measure progress, blocks have no deadlines, and the step budget is only a limit.
        """

    def __call__(self, scores: Tensor, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return bool [B, N], a subset of `state.eligible`. `scores` is -inf elsewhere."""


class Verdict(NamedTuple):
    """A stopping rule's answer. A rule that compares one number with a threshold reports both. [B] each"""

    settled: Tensor
    value: Tensor | None = None  # the value that the rule compares
    bar: Tensor | None = None  # the threshold it has to reach
    measure: str = "gap"  # the name of the value
    progress: Tensor | None = None  # the p at which the threshold was computed, if it depends on p


class Stop(Protocol):
    """Is the answer settled, so that everything left can be committed at once?"""

    def reads(self, state: StateView) -> Tensor:
        """Return bool [B, N]: the positions whose beliefs the rule reads. Nothing else is computed for it."""

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict: ...


class UntrustedText(str):
    """A text of a recipe that came from a request or a stored file. No file that it names may be opened."""

    __slots__ = ()


@runtime_checkable
class FromFile(Protocol):
    """A stopping rule that loads a file when it is first needed, unless its path is an `UntrustedText`.

    A stored trace can therefore name its rule even if the file is gone.
    """

    def read_file(self) -> None:
        """Load the file. Raises RecipeError if it is missing or its digest differs."""


class Verify(Protocol):
    """After an early commit: which tokens have to be masked and filled again?"""

    @property
    def passes(self) -> int:
        """How many passes may be spent on checking a commit; 0 for none."""

    def __call__(self, beliefs: Beliefs, state: StateView) -> Tensor:
        """Return bool [B, N]: committed positions to mask again, judged by a pass over the whole text."""


class Recipe(Protocol):
    """One policy per question, and a few numbers: the part of `recipes.Recipe` that the loop reads."""

    @property
    def ban_eos(self) -> Literal[False, True, "first"]: ...

    @property
    def guidance(self) -> float: ...

    @property
    def guidance_pins(self) -> bool: ...

    @property
    def cache(self) -> Cache: ...

    @property
    def sample(self) -> Sample: ...

    @property
    def region(self) -> Region: ...

    @property
    def score(self) -> Score: ...

    @property
    def transfer(self) -> Transfer: ...

    @property
    def stop(self) -> Stop: ...

    @property
    def verify(self) -> Verify: ...

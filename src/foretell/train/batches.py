"""Turn problems into tensors: pad prompts on the left, lay responses out in their window, choose hidden positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from foretell.engine.codec import Codec
from foretell.errors import ModelError, RecipeError, VocabularyError
from foretell.loop.protocols import Inputs
from foretell.tasks import Piece, Problem, Task, draw
from foretell.tasks.problem import GIVEN
from foretell.tasks.vocabulary import EOS, EOT, MASK, START, UNKNOWN
from foretell.train.config import RunConfig
from foretell.train.masks import Bools, Floats, Ints, Masking

GROUP = 16  # steps whose batches are drawn together, so that rows of similar length share a batch


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One prompt and its response, position by position in the window."""

    prompt: list[int]
    tokens: Ints  # [N]
    level: Ints  # [N]
    weight: Floats  # [N] weight of each position in the loss
    free: Bools  # [N] false where the token is pinned in decoding


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one task as inputs of the network."""

    inputs: Inputs
    row: Tensor  # [n] rows of the hidden positions
    at: Tensor  # [n] their positions in the window
    target: Tensor  # [n] their tokens
    weight: Tensor  # [n] their weights in the loss; a row's total does not depend on how much is hidden

    @property
    def tokens(self) -> int:
        return self.inputs.canvas.numel()


class Encoder:
    """Encodes problems as token ids, with the level of each token."""

    def __init__(
        self, tokenizer: Tokenizer, eos_weight: float = 0.2, *, eos: int | None = None, mask: int | None = None
    ) -> None:
        self.tokenizer, self.eos_weight = tokenizer, eos_weight
        self.eos = find_special(tokenizer, EOS) if eos is None else eos
        self.mask = find_special(tokenizer, MASK) if mask is None else mask
        self.unknown = tokenizer.token_to_id(UNKNOWN)

    def prompt(self, text: str) -> list[int]:
        ids: list[int] = self.encode(f"{START}{text}{EOT}").ids
        return ids

    def encode(self, text: str) -> Encoding:
        """Encode a text. Raises VocabularyError instead of emitting an unknown token, which cannot be trained."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        if self.unknown in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self.unknown)]
            raise VocabularyError(f"the vocabulary has no {text[start:end]!r}, which occurs in {text!r}")
        return encoding

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """Return tokens of the joined pieces, each with the level of its last character (the first may be blank)."""
        levels = [piece.level for piece in pieces for _ in piece.text]
        encoding = self.encode("".join(piece.text for piece in pieces))
        return [(token, levels[end - 1]) for token, (_, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    def lay_out(self, problem: Problem, window: int, *, pinned: bool) -> TrainingRow:
        """Lay out a response. The window ends with the suffix and the answer if `pinned`, otherwise with EOS tokens."""
        chain = self.encode_pieces(problem.pieces)
        suffix = self.encode_pieces((Piece(problem.suffix),))
        answer = self.encode_pieces((Piece(problem.answer, problem.level),))
        room = window - len(chain) - len(suffix) - len(answer)
        if room < 0:
            raise RecipeError(
                f"a response of {window - room} tokens does not fit a window of {window}: {problem.response!r}"
            )
        fill = [(self.eos, 0)] * room
        tail = (*fill, *suffix, *answer) if pinned else (*suffix, *answer, *fill)
        tokens, level = np.array([*chain, *tail], dtype=np.int64).T
        ended = tokens == self.eos
        weight = np.where(ended & np.roll(ended, 1), self.eos_weight, 1.0)  # the first EOS marks the end of the text
        free = level > GIVEN
        if pinned:
            end = window - len(answer)
            free[end - len(suffix) : end] = False
        return TrainingRow(self.prompt(problem.prompt), tokens, level, weight, free)


class ChatEncoder(Encoder):
    """An encoder for any checkpoint: prompts use its chat template if it has one."""

    def __init__(self, codec: Codec, eos_weight: float) -> None:
        super().__init__(codec.tokenizer, eos_weight, eos=next(iter(codec.end_ids), None), mask=codec.mask_id)
        self.codec = codec

    def prompt(self, text: str) -> list[int]:
        return self.codec.prompt(text)


def find_special(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token. Raises ModelError if the tokenizer has none."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ModelError(f"the tokenizer has no {token}, which training needs")
    return found


def assemble_batch(
    rows: Sequence[TrainingRow], block: int, encoder: Encoder, masking: Masking, rng: Generator
) -> Batch:
    """Build a batch from rows: draw hidden positions and their weights in the loss."""
    tokens, level, weight, free = (
        np.stack([getattr(row, name) for row in rows]) for name in ("tokens", "level", "weight", "free")
    )
    hidden, near = masking.draw(rng, level, free, block)
    noisy = np.where(hidden, encoder.mask, tokens)
    inputs = build_inputs([row.prompt for row in rows], noisy, encoder.eos)
    row, at = np.nonzero(hidden)
    share = weight * near / ((near * hidden).sum(1, keepdims=True) * len(rows))
    return Batch(
        inputs, torch.from_numpy(row), torch.from_numpy(at), torch.from_numpy(tokens[hidden]),
        torch.from_numpy(share[hidden]).float(),
    )  # fmt: skip


def build_inputs(prompts: Sequence[Sequence[int]], window: Ints, pad: int) -> Inputs:
    """Build the inputs of one forward pass over all columns, without a cache, that reads the window."""
    longest = max(map(len, prompts))
    rows, size = window.shape
    ids = np.full((rows, longest + size), pad, dtype=np.int64)
    valid = np.zeros_like(ids, dtype=bool)
    ids[:, longest:], valid[:, longest:] = window, True
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt) : longest] = prompt
        valid[i, longest - len(prompt) : longest] = True
    positions = (valid.cumsum(1) - 1).clip(0)
    columns = torch.arange(longest + size).expand(rows, -1)
    return Inputs(
        torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(valid), columns, columns[:, longest:], None
    )


def encode_problems(problems: Sequence[Problem], task: Task, encoder: Encoder, rng: Generator) -> list[TrainingRow]:
    """Encode problems as rows; if the task has two layouts, each row uses one at random."""
    both = bool(task.suffix)
    return [encoder.lay_out(p, task.window, pinned=both and bool(rng.random() < 0.5)) for p in problems]


def generate_batches(recipe: RunConfig, encoder: Encoder, rank: int, start: int) -> Iterator[tuple[str, Batch]]:
    """Yield batches without end from step `start` on, each from one task, chosen by its share of the mix."""
    group, skip = divmod(start, GROUP)
    while True:
        rng = np.random.default_rng([recipe.seed, rank, group])
        phase = recipe.phase(group * GROUP)
        names = list(phase.mix)
        shares = np.array(list(phase.mix.values()))
        edges = np.cumsum(shares / shares.sum())
        turns = rng.permutation(np.searchsorted(edges, (np.arange(GROUP) + rng.random()) / GROUP))
        waiting = {
            name: draw_group(recipe, encoder, phase.masking, name, int((turns == i).sum()), rng)
            for i, name in enumerate(names)
        }
        for index, turn in enumerate(turns):
            batch = waiting[names[turn]].pop()
            if index >= skip:
                yield names[turn], batch
        group, skip = group + 1, 0


def draw_group(
    recipe: RunConfig, encoder: Encoder, masking: Masking, name: str, count: int, rng: Generator
) -> list[Batch]:
    """Draw `count` batches of one task; each holds rows with prompts of similar length."""
    task, size = recipe.tasks[name], recipe.rows[name]
    rows = encode_problems(draw(task, rng, count * size, test=False), task, encoder, rng)
    rows.sort(key=lambda row: len(row.prompt))
    cuts = [rows[i * size : (i + 1) * size] for i in range(count)]
    return [assemble_batch(cuts[i], task.block, encoder, masking, rng) for i in rng.permutation(count)]

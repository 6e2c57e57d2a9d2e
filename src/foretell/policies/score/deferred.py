"""An option used for LLaDA's published results: an end of text is filled last, as if it were the least certain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.loop.protocols import LogitBeliefs, Score
from foretell.loop.view import StateView
from foretell.policies.score.confidence import Confidence


@dataclass(frozen=True, slots=True)
class Deferred:
    """Any score, with the lowest finite value where the proposed token would end the text.

    `renormalize`: score the distribution without the end tokens, as the released code does.
    """

    score: Score = Confidence()
    renormalize: bool = False

    def __call__(self, beliefs: LogitBeliefs, state: StateView) -> Tensor:
        ends = beliefs.tokens.new_tensor(state.end_ids)
        if self.renormalize:
            scores = self.score(beliefs.transform(lambda logits: logits.index_fill(1, ends, -torch.inf)), state)
        else:
            scores = self.score(beliefs, state)
        return scores.masked_fill(torch.isin(beliefs.tokens, ends), torch.finfo(scores.dtype).min)

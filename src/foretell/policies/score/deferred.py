"""LLaDA's option for its published scores: an end of text is proposed last, as if the model were sure of nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.policies.score.confidence import Confidence
from foretell.protocols import Beliefs, Score
from foretell.state import DecodeState


@dataclass(frozen=True, slots=True)
class Deferred:
    """Any score, with the lowest finite value wherever the proposed token would end the text."""

    score: Score = Confidence()

    def __call__(self, beliefs: Beliefs, state: DecodeState) -> Tensor:
        scores = self.score(beliefs, state)
        ends = torch.isin(beliefs.tokens, beliefs.tokens.new_tensor(state.end_ids))
        return scores.masked_fill(ends, torch.finfo(scores.dtype).min)

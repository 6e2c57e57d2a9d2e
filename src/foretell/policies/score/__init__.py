"""Scores (how sure the model is of each position) by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.score.confidence import Confidence
from foretell.policies.score.deferred import Deferred
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.filtered import Filtered
from foretell.policies.score.margin import Margin
from foretell.policies.score.noisy import Noisy
from foretell.policies.score.random import Random

SCORES: dict[str, type] = {
    "confidence": Confidence,
    "deferred": Deferred,
    "entropy": Entropy,
    "filtered": Filtered,
    "margin": Margin,
    "noisy": Noisy,
    "random": Random,
}

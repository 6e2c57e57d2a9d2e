"""A plug-in for the tests: decoding that takes as long as a test wants. Replicas load it by FORETELL_IMPORT."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.loop.protocols import Beliefs, Verdict
from foretell.loop.view import StateView
from foretell.policies import POLICIES


@dataclass(frozen=True, slots=True)
class Slow:
    """Never settles, and sleeps at every step."""

    seconds: float

    def reads(self, state: StateView) -> Tensor:
        return torch.zeros_like(state.answer)

    def __call__(self, beliefs: Beliefs, state: StateView) -> Verdict:
        time.sleep(self.seconds)
        return Verdict(torch.zeros_like(state.done))


POLICIES["stop"]["slow"] = Slow

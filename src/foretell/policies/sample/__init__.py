"""Sampling policies (which token is proposed) by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.sample.greedy import Greedy
from foretell.policies.sample.gumbel import Gumbel
from foretell.policies.sample.nucleus import Nucleus

SAMPLES: dict[str, type] = {"greedy": Greedy, "gumbel": Gumbel, "nucleus": Nucleus}

"""Which masks are filled now: transfer policies, by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.transfer.quota import Quota
from foretell.policies.transfer.timesteps import Timesteps

TRANSFERS: dict[str, type] = {"quota": Quota, "timesteps": Timesteps}

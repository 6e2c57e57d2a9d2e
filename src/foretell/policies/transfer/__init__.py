"""Transfer policies (which masks are filled now) by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.entropy_threshold import EntropyThreshold
from foretell.policies.transfer.factor import Factor
from foretell.policies.transfer.frechet import Frechet
from foretell.policies.transfer.jot import JoT
from foretell.policies.transfer.opening import Opening
from foretell.policies.transfer.paced import Paced
from foretell.policies.transfer.quota import Quota
from foretell.policies.transfer.threshold import Threshold
from foretell.policies.transfer.timesteps import Timesteps

TRANSFERS: dict[str, type] = {
    "entropy_bound": EntropyBound,
    "entropy_threshold": EntropyThreshold,
    "factor": Factor,
    "frechet": Frechet,
    "jot": JoT,
    "paced": Paced,
    "opening": Opening,
    "quota": Quota,
    "threshold": Threshold,
    "timesteps": Timesteps,
}

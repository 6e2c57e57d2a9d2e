"""The policies by kind and name. Each file of a folder holds one of them."""

from __future__ import annotations

from foretell.policies.cache import CACHES
from foretell.policies.region import REGIONS
from foretell.policies.sample import SAMPLES
from foretell.policies.score import SCORES
from foretell.policies.stop import SCALES, SCHEDULES, STOPS
from foretell.policies.transfer import TRANSFERS
from foretell.policies.verify import VERIFIERS
from foretell.policies.visible import VISIBLE

POLICIES: dict[str, dict[str, type]] = {
    "cache": CACHES,
    "sample": SAMPLES,
    "region": REGIONS,
    "score": SCORES,
    "transfer": TRANSFERS,
    "stop": STOPS,
    "verify": VERIFIERS,
    "visible": VISIBLE,
    "schedule": SCHEDULES,
    "scale": SCALES,
}

"""Cache policies (which columns are recomputed) by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.cache.delayed import Delayed
from foretell.policies.cache.drift import Drift
from foretell.policies.cache.dual import Dual
from foretell.policies.cache.off import Off
from foretell.policies.cache.prefix import Prefix

CACHES: dict[str, type] = {"delayed": Delayed, "drift": Drift, "dual": Dual, "off": Off, "prefix": Prefix}

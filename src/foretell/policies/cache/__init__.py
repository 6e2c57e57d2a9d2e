"""Which columns are recomputed: cache policies, by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.cache.off import Off

CACHES: dict[str, type] = {"off": Off}

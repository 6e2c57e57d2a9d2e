"""When the answer is settled: stopping rules and their schedules, by the name used in recipes."""

from __future__ import annotations

from foretell.policies.stop.combined import All, Any
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Staged
from foretell.policies.stop.stable import Stable

STOPS: dict[str, type] = {"all": All, "any": Any, "never": Never, "prophet": Prophet, "stable": Stable}
SCHEDULES: dict[str, type] = {"cosine": Cosine, "exponential": Exponential, "linear": Linear, "staged": Staged}

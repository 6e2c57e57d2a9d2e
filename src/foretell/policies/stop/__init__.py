"""Stopping rules (when the answer is settled), schedules and scales by the name used in recipes."""

from __future__ import annotations

from foretell.policies.stop.combined import All, Any
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.never import Never
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.scales import Gap, LogOdds, Ranks
from foretell.policies.stop.schedules import Cosine, Exponential, Linear, Staged
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure

STOPS: dict[str, type] = {
    "all": All,
    "any": Any,
    "judge": Judge,
    "never": Never,
    "persistent": Persistent,
    "prophet": Prophet,
    "stable": Stable,
    "sure": Sure,
}
SCHEDULES: dict[str, type] = {"cosine": Cosine, "exponential": Exponential, "linear": Linear, "staged": Staged}
SCALES: dict[str, type] = {"gap": Gap, "log_odds": LogOdds, "ranks": Ranks}

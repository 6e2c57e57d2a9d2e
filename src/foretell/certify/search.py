"""Walks along families of rules on a calibration set, and the fastest rule that they show to keep the risk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.certify.families import ALL, Family, families_named
from foretell.certify.outcomes import Outcomes
from foretell.certify.risk import certify, checked, shared, too_few
from foretell.engine.certificate import LOSSES
from foretell.errors import RequestError, one_of
from foretell.recipes.text import format_value

Families = str | Family | Sequence[str | Family]


@dataclass(frozen=True, slots=True)
class RiskGoal:
    """What is to be shown, of which rules."""

    risk: float = 0.01  # eps: the share of examples that may lose by stopping early
    confidence: float = 0.95  # 1 - delta: how sure that is to be
    loss: str = "consistency"  # or success, which needs right answers
    family: Families = ALL  # one, or several, which share delta
    against: str | None = None  # another recipe whose answers and steps count; None: the same without stopping

    def __post_init__(self) -> None:
        checked(self.risk, self.confidence)
        one_of("loss", self.loss, LOSSES, RequestError)
        families_named(self.family)

    @property
    def families(self) -> tuple[Family, ...]:
        return families_named(self.family)

    @property
    def level(self) -> float:
        """The confidence that each family has to reach."""
        return shared(self.confidence, len(self.families))

    def shortage(self, count: int) -> str | None:
        """Why `count` examples are too few to show anything; None if they may do."""
        return too_few(count, self.risk, self.confidence, len(self.families))


@dataclass(frozen=True, slots=True)
class Trial:
    """One member of a family on the calibration set."""

    setting: float
    stop: str
    empirical_risk: float
    p_value: float  # of a risk above the one asked for
    speedup: float  # in steps
    certified: bool


@dataclass(frozen=True, slots=True)
class FamilySearch:
    """One family on the calibration set."""

    family: Family
    trials: tuple[Trial, ...]  # the safest first
    bound: float  # of the risk of the boldest certified member

    @classmethod
    def along(cls, family: Family, found: Outcomes, goal: RiskGoal) -> FamilySearch:
        """From the safest member to the first that is not shown to keep the risk."""
        choice = certify(found.losses(goal.loss), goal.risk, goal.level)
        last = -1 if choice.index is None else choice.index
        numbers = zip(choice.risks.tolist(), choice.p_values.tolist(), found.speedups().tolist(), strict=True)
        trials = (
            Trial(setting, format_value(rule), *measured, certified=index <= last)
            for index, (setting, rule, measured) in enumerate(zip(family.settings, family.rules, numbers, strict=True))
        )
        return cls(family, tuple(trials), choice.bound)

    @property
    def boldest(self) -> Trial | None:
        """The last certified member."""
        return next((one for one in reversed(self.trials) if one.certified), None)


def fastest(walks: Sequence[FamilySearch]) -> FamilySearch:
    """The one whose boldest certified member is the fastest on the calibration set; the first, if there is none."""
    return max(walks, key=lambda walk: 0.0 if walk.boldest is None else walk.boldest.speedup)

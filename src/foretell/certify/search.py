"""Search families of rules for the fastest one whose risk is certified on a calibration set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.certify.outcomes import Outcomes
from foretell.certify.risk import certify, check_shares, confidence_at, next_useful, too_few
from foretell.engine.certificate import LOSSES
from foretell.errors import RequestError, one_of
from foretell.policies.stop.families import ALL, Family, find_families, share_delta
from foretell.recipes.text import format_value

Families = str | Family | Sequence[str | Family]


@dataclass(frozen=True, slots=True)
class RiskGoal:
    """The risk to guarantee, and the rules to choose from."""

    risk: float = 0.01  # eps: the share of examples that stopping early may lose
    confidence: float = 0.95  # 1 - delta: the probability that the certificate holds
    loss: str = "consistency"  # or "success", which needs right answers
    family: Families = ALL  # several families share delta
    against: str | None = None  # a recipe to compare with; None: the same recipe without stopping

    def __post_init__(self) -> None:
        check_shares(self.risk, self.confidence)
        one_of("loss", self.loss, LOSSES, RequestError)
        find_families(self.family)

    @property
    def families(self) -> tuple[Family, ...]:
        return find_families(self.family)

    @property
    def shares(self) -> dict[str, float]:
        """The share of delta of each family, by name. They are fixed before any data is seen and add up to 1."""
        return dict(zip((one.name for one in self.families), share_delta(self.families), strict=True))

    def level(self, family: Family) -> float:
        """Return the confidence that this family must reach, so that the certificates of all families hold at once."""
        return confidence_at(self.confidence, self.shares[family.name])

    def shortage(self, count: int) -> str | None:
        """Return a message if `count` examples are too few to certify any rule, otherwise None."""
        return too_few(count, self.risk, self.confidence, max(self.shares.values()))

    def next_useful(self, count: int) -> int:
        """Return the next number of examples that allows some family one error more than `count` examples do."""
        return min(next_useful(count, self.risk, self.level(family)) for family in self.families)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one rule of a family on the calibration set."""

    setting: float
    stop: str
    empirical_risk: float
    p_value: float  # of the hypothesis "the risk is above the allowed one"
    speedup: float  # in steps
    certified: bool


@dataclass(frozen=True, slots=True)
class FamilySearch:
    """The results of one family on the calibration set."""

    family: Family
    trials: tuple[Trial, ...]  # the safest first
    bound: float  # upper bound of the risk of the boldest certified rule

    @classmethod
    def run(cls, family: Family, found: Outcomes, goal: RiskGoal) -> FamilySearch:
        """Test rules from safest to boldest and stop at the first one that fails."""
        choice = certify(found.losses(goal.loss), goal.risk, goal.level(family))
        last = -1 if choice.index is None else choice.index
        numbers = zip(choice.risks.tolist(), choice.p_values.tolist(), found.speedups().tolist(), strict=True)
        trials = (
            Trial(setting, format_value(rule), *measured, certified=index <= last)
            for index, (setting, rule, measured) in enumerate(zip(family.settings, family.rules, numbers, strict=True))
        )
        return cls(family, tuple(trials), choice.bound)

    @property
    def boldest(self) -> Trial | None:
        """The last certified rule, or None."""
        return next((one for one in reversed(self.trials) if one.certified), None)


def find_fastest(searches: Sequence[FamilySearch]) -> FamilySearch:
    """Return the search whose boldest certified rule is the fastest; the first search if no rule is certified."""
    return max(searches, key=lambda search: 0.0 if search.boldest is None else search.boldest.speedup)

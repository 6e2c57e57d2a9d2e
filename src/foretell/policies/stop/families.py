"""Nested families of stopping rules, each indexed by one number, from the safest member to the fastest.

Nested: when a member stops, every faster member has already stopped. So risk and speed rise together along a family
(except where an answer becomes right again), and many safe rules pass before the first failure. The guarantee does not
depend on nesting (see `risk`). The grids are fixed here, before any data is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path

from foretell.errors import RecipeError, RequestError, unknown
from foretell.loop.protocols import Region, Stop
from foretell.policies.region.masked import Masked
from foretell.policies.stop.combined import All, Any
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.persistent import Persistent
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.scales import LogOdds, Ranks
from foretell.policies.stop.schedules import Exponential, Linear, Staged
from foretell.policies.stop.stable import Stable
from foretell.policies.stop.sure import Sure

# Fixed-sequence testing pays nothing for a fine grid, and a fine one comes closer to the largest risk that is allowed.
# Multiples of the published thresholds, from 16 (stops almost never) to 1/8 (almost at once), 64 steps per factor of 2.
FACTORS = tuple(round(2 ** (4 - step / 64), 4) for step in range(449))
ALL = "all"  # stands for every family that reads the recipe's own region
TWINS = {"prophet-min": "prophet", "linear-min": "linear"}  # of one token, the smallest gap is the mean gap
JUDGE = "judge"
JUDGE_SHARE = 0.8  # of delta, if other families are searched too: a judge is nearly always the fastest
STEPS = (*range(256, 64, -8), *range(64, 32, -2), *range(32, 0, -1))


@dataclass(frozen=True)
class Family:
    """The rules `rule(setting)` for a list of settings, the safest first."""

    name: str
    about: str
    knob: str  # name of the setting
    settings: tuple[float, ...]
    rule: Callable[[float], Stop]
    region: Region | None = None  # the region the published rule reads; None: the recipe's region
    published: float | None = None  # the setting that equals the published thresholds
    fitted_to: frozenset[str] = frozenset()  # keys of the examples that its rules were fitted to

    def __post_init__(self) -> None:
        if not self.settings:
            raise RecipeError(f"the family {self.name!r} has no members")
        if self.published is not None and self.published not in self.settings:
            raise RecipeError(f"the family {self.name!r} has no member at {self.published!r}, its published setting")

    @cached_property
    def rules(self) -> tuple[Stop, ...]:
        return tuple(self.rule(setting) for setting in self.settings)


def _bars(published: float) -> tuple[float, ...]:
    """Return bars from 1/1000 to 100 times the published one, 64 per factor of ten."""
    return tuple(float(f"{published * 10 ** (step / 64):.4g}") for step in range(-192, 129))


def _scale_staged(factor: float) -> Staged:
    usual = Staged()
    return replace(usual, high=_scale(usual.high, factor), mid=_scale(usual.mid, factor), low=_scale(usual.low, factor))


def _scale_linear(factor: float) -> Linear:
    usual = Linear()
    return Linear(_scale(usual.start, factor), _scale(usual.end, factor))


def _scale_sched(factor: float) -> Stop:
    usual = Exponential()
    tau = replace(usual, start=_scale(usual.start, factor), end=_scale(usual.end, factor))
    return All((Prophet(tau=tau), Stable(entropy=inf)))


def _scale(value: float, factor: float) -> float:
    return round(value * factor, 4)  # a rule's text should be short


FAMILIES: dict[str, Family] = {
    one.name: one
    for one in (
        Family("prophet", "the mean gap against staged thresholds", "factor", FACTORS,
               lambda factor: Prophet(_scale_staged(factor)), published=1.0),
        Family("prophet-min", "the smallest gap against staged thresholds", "factor", FACTORS,
               lambda factor: Prophet(_scale_staged(factor), reduce="min"), published=1.0),
        Family("linear", "the mean gap against a falling line", "factor", FACTORS,
               lambda factor: Prophet(_scale_linear(factor)), published=1.0),
        Family("linear-min", "the smallest gap against a falling line", "factor", FACTORS,
               lambda factor: Prophet(_scale_linear(factor), reduce="min"), published=1.0),
        Family("log-odds", "the smallest log-odds against staged thresholds", "factor", FACTORS,
               lambda factor: Prophet(_scale_staged(factor), reduce="min", scale=LogOdds())),
        Family("sched", "SchED: the mean gap over every mask, and no draft changed", "factor", FACTORS,
               _scale_sched, region=Masked(), published=1.0),
        Family("stable", "the answer unchanged for a step, its mean entropy below a bar", "entropy", _bars(0.005),
               lambda bar: Stable(1, bar), published=0.005),
        Family("entropy", "the answer's mean entropy below a bar", "entropy", _bars(0.1), Sure, published=0.1),
        Family("persistence", "the extracted answer unchanged for n steps", "steps", STEPS,
               lambda steps: Persistent(int(steps))),
    )
}  # fmt: skip


def ranks_family(scale: Ranks, fitted_to: Iterable[str] = ()) -> Family:
    """Return the family that compares the smallest gap's rank with a bar; `fitted_to` are the keys of its examples."""
    bars = tuple(round(1 - 10 ** (step / 64 - 5), 8) for step in range(305))  # from 0.99999 to 0.44
    about = "the smallest gap, as a rank among known ones, against a bar"

    def rule(bar: float) -> Stop:
        return Prophet(Linear(bar, bar), reduce="min", scale=scale)

    return Family("ranks", about, "rank", bars, rule, fitted_to=frozenset(fitted_to))


def judge_family(path: str | Path) -> Family:
    """Return the family that compares a trained judge's score with a bar."""
    judge = Judge(str(path))
    examples = judge.head.trained.get("examples", ())
    bars = tuple(16 - step / 32 for step in range(577))  # log-odds, down to -2
    about = "a trained judge's log-odds against a bar"
    return Family(JUDGE, about, "log-odds", bars, lambda bar: replace(judge, bar=bar), fitted_to=frozenset(examples))


def with_token_clock(family: Family) -> Family:
    """Return the family with progress measured in filled tokens, for recipes that fill several masks per step."""
    return replace(family, rule=lambda setting: use_token_clock(family.rule(setting)))


def use_token_clock(rule: Stop) -> Stop:
    """Return the rule with progress measured in filled tokens, unless it names a clock."""
    if isinstance(rule, Prophet) and rule.clock is None:
        return replace(rule, clock="tokens")
    return replace(rule, rules=tuple(map(use_token_clock, rule.rules))) if isinstance(rule, All | Any) else rule


def find_families(names: str | Family | Sequence[str | Family]) -> tuple[Family, ...]:
    """Return the families with these names; `all` means those that read the recipe's own region."""
    given = [names] if isinstance(names, str | Family) else [*names]
    found: list[Family] = []
    for one in given:
        if one == ALL:
            found += [family for family in FAMILIES.values() if family.region is None]
        elif isinstance(one, Family):
            found.append(one)
        elif one in FAMILIES:
            found.append(FAMILIES[one])
        else:
            raise RequestError(unknown("family", one, (*FAMILIES, ALL)))
    if not found:
        raise RequestError("a calibration needs at least one family of rules")
    if len({family.name for family in found}) < len(found):
        raise RequestError(f"each family can be given once, got {', '.join(family.name for family in found)}")
    if len({family.region for family in found}) > 1:
        raise RequestError(
            f"{' and '.join(family.name for family in found)} read different regions; calibrate them one by one"
        )
    return tuple(found)


def share_delta(families: Sequence[Family]) -> tuple[float, ...]:
    """Return the share of delta that each family gets: a judge most of it, the others equal shares of what is left."""
    others = sum(family.name != JUDGE for family in families)
    if others in (0, len(families)):
        return (1 / len(families),) * len(families)
    return tuple(JUDGE_SHARE if family.name == JUDGE else (1 - JUDGE_SHARE) / others for family in families)


def drop_twins(families: Sequence[Family]) -> tuple[Family, ...]:
    """Drop the families that equal another one of these where the answer is a single token."""
    names = {family.name for family in families}
    return tuple(family for family in families if TWINS.get(family.name) not in names)

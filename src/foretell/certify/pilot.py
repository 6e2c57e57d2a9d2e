"""The pilot: learn the model's scale on a few examples, try stacks of policies, and choose one ladder.

Anything may be looked at here, because none of these examples counts as evidence later. A stack is a choice of
transfer, block length and cache; its thresholds lie on the model's own scale. Stacks are compared on few examples, the
better half on twice as many, and so on (successive halving). Stopping rules are replayed on the traces of a stack,
which costs no decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product, zip_longest
from typing import Any, Protocol

import numpy as np

from foretell.certify.betting import Array
from foretell.certify.decode_store import DecodeStore
from foretell.certify.ladders import TOLERANCES, TRANSFERS, Ladder, ModelScale, TransferKind, round_size
from foretell.certify.losses import Decoded, describe_example
from foretell.certify.outcomes import replay_losses
from foretell.certify.search import RiskGoal, predict_speedup
from foretell.engine.options import can_stop
from foretell.errors import ModelError
from foretell.evaluation.benchmark import Example
from foretell.evaluation.records import Record
from foretell.loop.protocols import Stop
from foretell.policies.cache.off import Off
from foretell.policies.stop.families import FAMILIES, Family, with_token_clock
from foretell.policies.stop.never import Never
from foretell.policies.stop.sure import Sure
from foretell.recipes.presets import parse
from foretell.recipes.text import format_value

START = 32  # examples of the first round
FIRST_LEVELS = (5, 11, 17, 23)  # indices of TOLERANCES that the first round tries
WIDEST = 5  # levels tried on either side of the best one, in the last round
OFFSETS = tuple(range(-8, 13, 2))  # levels between the bar of the transfer and that of the stopping rule
CACHES = ("cache=dual", "cache=prefix")
HIDING = ("cache=off(visible=near({0}))", "cache=dual(visible=near({0}))")  # of masks further than {0} after the block
RECHECK = "verify=recheck"
SURE = 0.98  # a rung that passes with this probability needs none of the slower rungs that the pilot decoded
SAFER = (1 / 2, 1 / 4, 1 / 8, 1 / 16)  # odds of a wrong draft in the added rungs, relative to the first of the others
WORTHWHILE = 1.25  # the least speedup of an added rung
HOPELESS = 0.1  # a rung that passes with less is not worth decoding the calibration set


@dataclass(frozen=True, slots=True)
class StopKind:
    """A family of stopping rules whose number is placed on the scale of one measure."""

    family: Family
    measure: str
    setting: Callable[[float], float]  # from a bar of that measure

    def rule(self, scale: ModelScale, level: float, odds: float = 1.0) -> Stop:
        """Return the rule at a level (see `ModelScale.bar`); levels after the last one are the last one."""
        bar = scale.bar(self.measure, min(level, len(TOLERANCES) - 1), odds)
        return with_token_clock(self.family).rule(round_size(self.setting(bar)))


# The factor 1 of the first two stands for a threshold of 5 in the middle of a decoding.
STOPS = {
    "prophet-min": StopKind(FAMILIES["prophet-min"], "gap", lambda bar: bar / 5),
    "log-odds": StopKind(FAMILIES["log-odds"], "confidence", lambda bar: math.log(bar / max(1e-7, 1 - bar)) / 5),
    "entropy": StopKind(FAMILIES["entropy"], "entropy", lambda bar: bar),
}


class RungMaker(Protocol):
    """Returns the recipe of a rung at a level and at a multiple of the odds of a wrong draft (`ModelScale.bar`)."""

    def __call__(self, level: float, odds: float = 1.0) -> str: ...


@dataclass(frozen=True, slots=True)
class Stack:
    """A transfer and further settings; a level of tolerance makes a recipe of it."""

    base: str  # the recipe it changes
    kind: TransferKind
    settings: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.kind.name, self.settings)))

    def recipe(self, scale: ModelScale, level: float, odds: float = 1.0) -> str:
        transfer = format_value(self.kind.make(scale.bar(self.kind.measure, level, odds)))
        return " ".join(filter(None, (self.base, "stop_at_eos=true", self.settings, f"transfer={transfer}")))


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A ladder on the pilot: what each rung loses and costs on the examples seen."""

    ladder: Ladder  # its settings are levels
    make: RungMaker
    losses: Array  # [rungs, m]
    costs: Array  # [rungs, m]
    full: Array  # [m] costs of full decoding
    expected: float  # speedup that the calibration set is expected to certify

    @property
    def speedups(self) -> Array:
        found: Array = self.full.sum() / self.costs.sum(axis=1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PilotResult:
    """The ladder to certify, and everything that was tried on the way."""

    scale: ModelScale
    chosen: Ladder
    transfer_alone: Ladder  # the best one without a stopping rule
    tried: tuple[Tried, ...]  # in the order of their expected speedup
    rounds: tuple[tuple[int, tuple[str, ...]], ...] = ()  # examples and names of the stacks of each round


@dataclass(slots=True)
class Pilot:
    """Searches stacks on `examples`, for a goal that `planned` other examples have to show at the level `delta`."""

    store: DecodeStore
    goal: RiskGoal
    examples: Sequence[Example]
    planned: int
    delta: float
    against: str
    _full: dict[str, Record] = field(default_factory=dict, init=False)

    def run(self) -> PilotResult:
        cases = self.store.cases(self.against, self.examples, "pilot: full decoding")
        self._full = {case.example.id: case.record for case in cases}
        scale = ModelScale.of([case.trace for case in cases])
        stacks, levels = self._list_stacks(), dict[Stack, Sequence[int]]()
        first, rounds, size = stacks[0], [], min(START, len(self.examples))
        levels = dict.fromkeys(stacks, FIRST_LEVELS)
        while size < len(self.examples) and len(stacks) > 1:
            found = {one: self._try(one, scale, levels[one], size) for one in stacks}
            rounds.append((size, tuple(one.name for one in stacks)))
            stacks = sorted(stacks, key=lambda one: -found[one].expected)[: max(1, len(stacks) // 2)]
            if first not in stacks:  # the plain threshold is always compared
                stacks.append(first)
            levels = {one: _near(self._best_level(found[one]), 3) for one in stacks}
            size = min(2 * size, len(self.examples))
            if len(stacks) <= 2:
                break
        finalists = [self._finish(one, scale, levels[one]) for one in stacks]
        rounds.append((len(self.examples), tuple(one.name for one in stacks)))
        alone = max(finalists, key=lambda one: one.expected)
        tried = [*finalists]
        for one in finalists:
            tried += self._with_stops(one, scale)
        best = max(tried, key=lambda one: one.expected)
        tried += self._live_variants(best)
        tried.sort(key=lambda one: -one.expected)
        return PilotResult(scale, self._trim(tried[0]), self._trim(alone), tuple(tried), tuple(rounds))

    def _list_stacks(self) -> list[Stack]:
        """Return every stack that the model can decode, first the one that `swift` uses.

        Caches and hidden masks save columns and time but no passes, so they are tried only if one of those is the cost.
        """
        own, first = parse(self.store.resolve(self.against)).block_length, self.examples[0]
        way = self.store.bench.recipes[0]
        window = way.template(self.store.bench.engine, first, 0).layout.length
        blocks = [""] if own is None or own >= window else ["", "block_length=none"]
        caches = ["", *(CACHES if self.goal.cost in ("columns", "seconds") else ())]
        if len(caches) > 1 and own is not None and window > 2 * own:  # otherwise one block ahead is all there is
            caches += [one.format(own) for one in HIDING]
        found = []
        for kind, cache, block in product(TRANSFERS.values(), caches, blocks):
            if cache and block:
                continue  # a cache keeps what lies outside the block, and nothing does
            stack = Stack(self.against, kind, " ".join(filter(None, (cache, block))))
            if self._can_decode(f"{self.against} {stack.settings}"):
                found.append(stack)
        return found

    def _can_decode(self, recipe: str) -> bool:
        cache = parse(self.store.resolve(recipe)).cache
        if not cache.stores:
            return True
        try:
            self.store.bench.engine.model.new_cache(0, 0)
        except ModelError:
            return False
        return True

    def _try(self, stack: Stack, scale: ModelScale, levels: Sequence[int], size: int) -> Tried:
        """Decode the first `size` examples with a stack at some levels."""
        rungs: dict[str, int] = {}
        make = partial(stack.recipe, scale)
        for level in levels:
            rungs.setdefault(make(level), level)  # two levels may round to the same number
        title = f"pilot: {stack.name}, {size} examples"
        ladder = Ladder(stack.name, tuple(rungs), tuple(map(float, rungs.values())), "level")
        return self._measure(ladder, make, [self._decode(one, size, title) for one in rungs])

    def _decode(self, recipe: str, size: int, title: str) -> list[Record]:
        if parse(self.store.resolve(recipe)).cache != Off():  # such traces lack beliefs that a stopping rule would read
            return self.store.records(recipe, self.examples[:size], title)
        return [case.record for case in self.store.cases(recipe, self.examples[:size], title)]

    def _measure(self, ladder: Ladder, make: RungMaker, rungs: Sequence[Sequence[Record]]) -> Tried:
        """Compare the records of every rung with full decoding's."""
        losses = np.array([[self._loss(one, example) for one, example in self._pairs(mine)] for mine in rungs])
        costs = np.array([[cost_of(one, self.goal.cost) for one in mine] for mine in rungs])
        full = np.array([cost_of(self._full[one.id], self.goal.cost) for one in rungs[0]])
        return self._score(ladder, make, losses, costs, full)

    def _pairs(self, records: Sequence[Record]) -> Iterable[tuple[Record, Example]]:
        return zip(records, self.examples, strict=False)

    def _loss(self, record: Record, example: Example) -> float:
        full, fast = Decoded.of_record(self._full[example.id]), Decoded.of_record(record)
        return self.goal.measure(full, fast, describe_example(example))

    def _score(self, ladder: Ladder, make: RungMaker, losses: Array, costs: Array, full: Array) -> Tried:
        speedups = full.sum() / costs.sum(axis=1)
        expected = predict_speedup(losses, speedups, self.planned, self.goal, self.delta)
        return Tried(ladder, make, losses, costs, full, expected)

    def _finish(self, stack: Stack, scale: ModelScale, levels: Sequence[int]) -> Tried:
        """Decode all examples with a stack, at every level around the best one so far."""
        middle = levels[len(levels) // 2]
        around = range(max(0, middle - WIDEST), min(len(TOLERANCES), middle + WIDEST + 1))
        return self._try(stack, scale, [*around], len(self.examples))

    def _with_stops(self, tried: Tried, scale: ModelScale) -> list[Tried]:
        """Return the ladder with stopping rules on top, replayed on its traces: one ladder per family and offset.

        The bar of a rule lies on the scale, too, at the level of its rung plus an offset. So both numbers of a rung
        move together, and only the family and the offset are chosen on the pilot.
        """
        if not self._stops(tried.ladder.rungs[0]):
            return []
        against = [self._full[one.id] for one in self.examples]
        levels = [int(one) for one in tried.ladder.settings]
        found: list[Tried] = []
        for name, kind in STOPS.items():
            rules = [[kind.rule(scale, level + offset) for offset in OFFSETS] for level in levels]
            replayed = [self._replay(*one, against) for one in zip(tried.ladder.rungs, rules, strict=True)]
            for place, offset in enumerate(OFFSETS):
                make = partial(_add_stop, tried.make, kind, scale, offset)
                rungs = tuple(map(make, levels))
                ladder = Ladder(f"{tried.ladder.name} + {name}, offset {offset}", rungs, tried.ladder.settings, "level")
                losses, costs = (np.array([one[side][place] for one in replayed]) for side in (0, 1))
                found.append(self._score(ladder, make, losses, costs, tried.full))
        return found

    def _stops(self, recipe: str) -> bool:
        """Return whether a stopping rule has an answer to read under this recipe, and can be replayed."""
        way = self.store.prepare(recipe).recipes[0]
        template = way.template(self.store.bench.engine, self.examples[0], 0)
        if template.recipe.cache != Off() or template.fills:
            return False
        return can_stop(replace(template.recipe, stop=Sure()), template.layout)

    def _replay(self, rung: str, rules: Sequence[Stop], against: Sequence[Record]) -> tuple[Array, Array]:
        """Return losses and costs [rules, m] of stopping rules on one rung."""
        cases = self.store.cases(rung, self.examples)
        steps, (losses,) = replay_losses(cases, rules, against, [self.goal.measure])
        per_step = np.array([cost_of(case.record, self.goal.cost) / case.record.steps for case in cases])
        return losses, steps * per_step

    def _live_variants(self, best: Tried) -> list[Tried]:
        """Decode the variant that cannot be replayed, `verify=recheck`, on the best ladder, if that has a rule."""
        if parse(self.store.resolve(best.ladder.rungs[0])).stop == Never():
            return []

        def make(level: float, odds: float = 1.0) -> str:
            return f"{best.make(level, odds)} {RECHECK}"

        def decode(name: str, levels: Sequence[float]) -> Tried:
            rungs = tuple(make(level) for level in levels)
            ladder = Ladder(f"{best.ladder.name} + {name}", rungs, tuple(levels), "level")
            records = [self.store.records(rung, self.examples, "pilot: recheck") for rung in rungs]
            return self._measure(ladder, make, records)

        middle = int(np.abs(best.speedups - best.expected).argmin())
        one = decode("recheck (one rung)", best.ladder.settings[middle : middle + 1])
        return [one if one.expected <= best.expected else decode("recheck", best.ladder.settings)]

    def _best_level(self, tried: Tried) -> int:
        """Return the level of the rung with the largest product of speedup and probability to pass."""
        worth = [chance * speedup for chance, speedup in zip(self._chances(tried), tried.speedups, strict=True)]
        return int(tried.ladder.settings[int(np.argmax(worth))])

    def _chances(self, tried: Tried) -> list[float]:
        """Return the predicted probability that each rung, tested alone, passes."""
        return list(map(self._chance, tried.losses))

    def _chance(self, losses: Array, share: float = 1.0) -> float:
        """Return the predicted probability that a rung with this share of the losses [m] on the pilot passes."""
        twice = np.array([2.0])
        return predict_speedup(losses[None], twice, self.planned, self.goal, self.delta, share=share) - 1

    def _trim(self, tried: Tried) -> Ladder:
        """Drop rungs that are not worth a test: those that cannot pass, those with a faster rung that is as likely to
        pass, and those before a rung that is nearly certain to pass.

        Add safer rungs before them, because the ladder was chosen for looking best on the pilot, so its first rung may
        be less safe than it looks. Add one more rung halfway between neighbours. The pilot is too small to measure the
        risk of the added rungs. More rungs cost time but no confidence, and if a rung fails, it helps that the rung
        before it is not much slower.
        """
        chances, costs = self._chances(tried), tried.costs.sum(axis=1)
        order = sorted(range(len(chances)), key=lambda row: costs[row])  # the fastest first
        kept: list[int] = []
        for row in order:
            if chances[row] > max([HOPELESS, *(chances[one] for one in kept)]):
                kept.append(row)
            if chances[row] >= SURE:
                break
        kept = (kept or [order[-1]])[::-1]
        levels = [tried.ladder.settings[row] for row in kept]
        rungs = [*self._safer(tried, kept[0]), *map(tried.make, _with_middles(levels))]
        return Ladder(tried.ladder.name, tuple(dict.fromkeys(rungs)))

    def _safer(self, tried: Tried, first: int) -> list[str]:
        """Return safer rungs than the rung in row `first`, the safest first.

        Each has half the odds of a wrong draft of the next one. The last to be added is nearly certain to pass if the
        risk falls with the odds, and those that save little are left out.
        """
        few, found = self.examples[:START], list[str]()
        full = sum(cost_of(self._full[one.id], self.goal.cost) for one in few)
        for odds in SAFER:
            rung = tried.make(tried.ladder.settings[first], odds)
            cost = sum(cost_of(one, self.goal.cost) for one in self.store.records(rung, few, "pilot: safer rungs"))
            if full < WORTHWHILE * cost:
                break
            found.insert(0, rung)
            if self._chance(tried.losses[first], odds) >= SURE:
                break
        return found


def _with_middles(levels: Sequence[float]) -> list[float]:
    """Return the levels with the middle of every two neighbours between them."""
    middles = [(one + other) / 2 for one, other in pairwise(levels)]
    return [level for pair in zip_longest(levels, middles) for level in pair if level is not None]


def _add_stop(make: RungMaker, kind: StopKind, scale: ModelScale, offset: int, level: float, odds: float = 1.0) -> str:
    """Return the recipe of a rung with a stopping rule, whose bar lies `offset` levels from the rung's."""
    return f"{make(level, odds)} stop={format_value(kind.rule(scale, level + offset, odds))}"


def cost_of(record: Record, cost: str) -> float:
    """Return what one decoding cost."""
    named: dict[str, Any] = {"columns": record.columns_needed, "seconds": record.wall}
    return float(named.get(cost, getattr(record, cost, 0)))


def _near(level: int, distance: int) -> tuple[int, ...]:
    last = len(TOLERANCES) - 1
    return tuple(sorted({max(0, level - distance), level, min(last, level + distance)}))

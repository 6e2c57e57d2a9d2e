"""A recipe names one policy for each question of `protocols`. Frozen, hashable, comparable, printable."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from foretell.errors import RecipeError, one_of, show, whole, within
from foretell.loop.protocols import Cache, Region, Sample, Score, Stop, Transfer, Verify
from foretell.policies.cache.off import Off
from foretell.policies.region.fixed import Fixed
from foretell.policies.sample.greedy import Greedy
from foretell.policies.score.confidence import Confidence
from foretell.policies.stop.combined import each
from foretell.policies.stop.never import Never
from foretell.policies.transfer.quota import Quota
from foretell.policies.verify.trust import Trust
from foretell.recipes.text import DEEPEST, LITERAL, adjust, check_length, format_value, name_of

LARGEST = 1e6  # the limit of numbers that have no natural one
# The kinds of policies, and the member that each has besides `__call__`.
POLICY = {"cache": "stores", "sample": "", "region": "sought", "score": "", "transfer": "parallel"}
POLICY |= {"stop": "reads", "verify": "passes"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to decode: one policy per question, and a few numbers. The default is full decoding as in LLaDA."""

    steps: int | None = None  # maximum number; None: one per position of the window
    block_length: int | None = 32  # None: the whole window is one block
    stop_at_eos: bool = False  # compute nothing after the end of the text
    ban_eos: Literal[False, True, "first"] = False  # never propose end tokens; "first": only the first
    guidance: float = 0.0  # scale of classifier-free guidance
    guidance_pins: bool = False  # guidance masks pinned tokens as well as the prompt
    cache: Cache = Off()
    sample: Sample = Greedy()
    region: Region = Fixed()
    score: Score = Confidence()
    transfer: Transfer = Quota()
    stop: Stop = Never()
    verify: Verify = Trust()

    def __post_init__(self) -> None:
        if self.steps is not None:
            whole("steps", self.steps, 1)
        if self.block_length is not None:
            whole("block_length", self.block_length, 1)
        within("guidance", self.guidance, 0.0, LARGEST)
        one_of("ban_eos", format_value(self.ban_eos), ("false", "true", "first"))
        for kind, member in POLICY.items():
            _check_policy(kind, member, getattr(self, kind))
        _check_booleans(self)
        if self.transfer.parallel:
            self._check_clocks()

    def __str__(self) -> str:
        """Return what differs from the default, as text that `presets.parse` reads."""
        changed = [field for field in fields(self) if getattr(self, field.name) != field.default]
        return " ".join(["full", *(f"{field.name}={format_value(getattr(self, field.name))}" for field in changed)])

    def adjusted(self, *settings: tuple[str, str]) -> Recipe:
        """Return a copy with some parameters changed: `adjusted(("stop.tau.high", "8"), ("steps", "64"))`."""
        return adjust(self, settings) if settings else self

    def _check_clocks(self) -> None:
        """Raise RecipeError if a rule depends on p and does not say whether p counts steps or filled tokens."""
        for rule in each(self.stop):
            if getattr(rule, "clock", "") is None:
                name = name_of(rule)
                raise RecipeError(
                    f"{name}'s threshold falls with progress, which steps do not measure with "
                    f"transfer={name_of(self.transfer)}, because the model decides how many masks are filled per step; "
                    f"name a clock: {name}(clock=tokens) counts filled tokens, {name}(clock=steps) counts steps"
                )


def _check_policy(kind: str, member: str, value: object) -> None:
    """Raise a RecipeError that says how to fix it, unless `value` is a policy of this kind."""
    if isinstance(value, str):
        raise RecipeError(
            f"{kind} is the text {show(value)}; a Recipe takes a policy object: read one from text with "
            f"foretell.parse({show(f'full {kind}={value}')})"
        )
    if isinstance(value, type):
        raise RecipeError(f"{kind} is the class {value.__name__} itself; give an instance: {value.__name__}(...)")
    if not callable(value) or (member and not hasattr(value, member)):
        wanted = f"`{member}` and `__call__`" if member else "`__call__`"
        raise RecipeError(f"{kind} must be a policy, an object with {wanted}, got {show(value)}")
    try:
        hash(value)
    except TypeError as error:
        raise RecipeError(
            f"{kind}={type(value).__name__} cannot be hashed ({error}), and requests are batched by their recipe: "
            "make the policy a frozen dataclass, @dataclass(frozen=True), of fields that can be hashed"
        ) from error


def _check_booleans(value: Any, depth: int = 0) -> None:
    """Raise RecipeError if a field that is declared as a bool, also of a policy inside, holds anything else."""
    if depth > DEEPEST:
        raise RecipeError(f"policies are nested more than {DEEPEST} deep")
    for field in fields(value):
        inner = getattr(value, field.name)
        if field.type in ("bool", bool) and not isinstance(inner, bool):
            raise RecipeError(f"{name_of(value)}'s {field.name} must be True or False, got {show(inner)}")
        for one in inner if isinstance(inner, tuple) else (inner,):
            if is_dataclass(one) and not isinstance(one, type):
                _check_booleans(one, depth + 1)


def split_recipe(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Split a recipe's text into the name of a preset and its settings, pairs of a path and a value."""
    check_length(text)
    name, *settings = _words(text) or [""]
    pairs = [setting.partition("=") for setting in settings]
    for path, equals, _ in pairs:
        if not equals:
            raise RecipeError(
                f"cannot read {path!r:.80} in recipe {text!r:.200}; write path=value, e.g. stop.tau.high=8"
            )
    return name, [(path, value) for path, _, value in pairs]


def _words(text: str) -> list[str]:
    """Split at white space outside of parentheses and quotes."""
    words, start, depth = [], 0, 0
    for match in re.finditer(rf"{LITERAL.pattern}|[()\s]", text, LITERAL.flags):
        part = match[0]
        depth += (part == "(") - (part == ")")
        if part.isspace() and depth <= 0:
            words.append(text[start : match.start()])
            start = match.end()
    return [word for word in (*words, text[start:]) if word]

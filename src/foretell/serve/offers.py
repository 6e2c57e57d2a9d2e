"""The recipes that an operator offers to clients, and the settings that a client may change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretell.engine.certificate import Certificate, recipe_of
from foretell.engine.engine import Engine
from foretell.errors import RequestError, show, unknown
from foretell.loop.protocols import Stop
from foretell.policies.stop import STOPS
from foretell.policies.stop.families import use_token_clock
from foretell.policies.stop.never import Never
from foretell.policies.stop.prophet import Prophet
from foretell.policies.stop.schedules import Linear
from foretell.recipes.presets import CAUTIOUS, PRESETS, parse
from foretell.recipes.recipe import split_recipe
from foretell.recipes.text import untrusted

FULL = "full"
FOR_BUNDLED = ("swift", "swift stop=never", "prophet stop.reduce=min", "prophet")
ABOUT = {
    CAUTIOUS: "fill every nearly certain mask at once, without early commit",
    "swift stop=never": "swift without early commit: fill every nearly certain mask at once",
    "prophet stop.reduce=min": "commit everything once the answer's least certain token reaches a staged threshold",
}  # recipes with changes
SETTING = re.compile(r"[a-z_.]{1,60}=-?\d{1,9}(\.\d{1,9})?")  # what a client may add to the name of a recipe
MOST_SETTINGS = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """One recipe by its name."""

    name: str
    recipe: str | Certificate
    about: str

    @property
    def text(self) -> str:
        return self.recipe if isinstance(self.recipe, str) else str(self.recipe.chosen)

    @property
    def stops(self) -> bool:
        """Whether it can commit early."""
        return parse(self.text).stop != Never()


@dataclass(frozen=True)
class Offers:
    """The recipes of a server by name; the first one is the default."""

    each: Mapping[str, Offer]

    @classmethod
    def of(cls, given: Iterable[str], engine: Engine) -> Offers:
        """Return offers for recipes' texts and certificates' files; without any, the defaults for the model.

        Full decoding is always offered: everything else is compared with it.
        """
        chosen = list(given) or list(FOR_BUNDLED if is_bundled(engine) else [CAUTIOUS])
        made = [_make_offer(one) for one in (*chosen, FULL)]
        return cls({one.name: one for one in made})

    @property
    def default(self) -> Offer:
        return next(iter(self.each.values()))

    @property
    def calibrated(self) -> list[Certificate]:
        """The tuned files with a calibration of typed decisions."""
        found = [one.recipe for one in self.each.values() if isinstance(one.recipe, Certificate)]
        return [one for one in found if one.decisions is not None]

    def find(self, asked: str | None) -> tuple[Offer, str | None]:
        """Return the offer that a client asked for by name, and its numeric settings.

        Raises RequestError unless the name is offered and the settings are numbers.
        """
        if asked is None:
            return self.default, None
        if asked in self.each:
            return self.each[asked], None
        name, settings = self._split(asked)
        for one in settings:
            if not SETTING.fullmatch(one):
                raise RequestError(
                    f"recipe={show(asked)}: a client may add numbers to a recipe that is offered, such as "
                    f"transfer.value=0.99, but not {show(one)}"
                )
        if len(settings) > MOST_SETTINGS:
            raise RequestError(
                f"recipe={show(asked)} has {len(settings)} settings; at most {MOST_SETTINGS} may be given"
            )
        offer = self.each[name]
        text = " ".join(settings)
        with untrusted():
            parse(offer.text).adjusted(*split_recipe(f"full {text}")[1])  # raises if a parameter is unknown
        return offer, text

    def recipe(self, asked: str) -> str | Certificate:
        """Return an offered recipe by its name, with its numeric settings; a certificate takes none."""
        offer, settings = self.find(asked)
        if settings is None:
            return offer.recipe
        if isinstance(offer.recipe, Certificate):
            raise RequestError(f"recipe={show(asked)}: a certified recipe takes no settings here")
        return f"{offer.recipe} {settings}"

    def _split(self, asked: str) -> tuple[str, list[str]]:
        """Return the longest offered name that the text begins with, and the words after it."""
        found = [name for name in self.each if asked.startswith(f"{name} ")]
        if not found:
            raise RequestError(unknown("recipe", asked, self.each))
        name = max(found, key=len)
        return name, asked[len(name) :].split()

    def rule(self, name: str, *, parallel: bool) -> Stop:
        """Return a stopping rule by its name, for a transfer that fills many masks per step if `parallel`.

        Raises RequestError if there is none.
        """
        rules = find_rules()
        if name not in rules:
            raise RequestError(unknown("stop_rule", name, rules))
        return use_token_clock(rules[name]) if parallel else rules[name]


@cache
def find_rules() -> Mapping[str, Stop]:
    """Return the stopping rules that a client may name: those that need neither a parameter nor a file."""
    made: dict[str, Stop] = {}
    for name, kind in STOPS.items():
        with suppress(TypeError):  # it needs a parameter
            made[name] = kind()
    variants = {"prophet-min": Prophet(reduce="min"), "prophet-linear": Prophet(tau=Linear())}
    return dict(sorted((made | variants).items()))


def is_bundled(engine: Engine) -> bool:
    """Return whether the model comes with this package, so that `swift` was tuned on it."""
    return engine.bundled


def _make_offer(given: str) -> Offer:
    found = recipe_of(given)
    if isinstance(found, Certificate):
        return Offer(Path(given).stem, found, f"certified: {found.says}")
    assert isinstance(found, str), "a text is no recipe object"
    parse(found)  # raises if it is not a recipe
    name, settings = split_recipe(found)
    changed = f"{name} with {found.removeprefix(name).strip()}" if settings else PRESETS[name].about
    return Offer(found, found, ABOUT.get(found, changed))

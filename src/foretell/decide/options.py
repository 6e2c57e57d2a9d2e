"""The options of decisions, and how they become a template, a recipe and a calibration."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TypedDict

from foretell.decide.calibration import Calibration
from foretell.decide.canvas import Asked
from foretell.decide.prompts import find_template
from foretell.engine.certificate import Certificate
from foretell.engine.engine import Engine
from foretell.engine.folder import DecisionTemplate, check_template, decision_templates
from foretell.engine.options import GenerateOptions, RequestTemplate
from foretell.engine.request import Layout
from foretell.errors import RequestError
from foretell.policies.sample.greedy import Greedy
from foretell.policies.stop.combined import each
from foretell.policies.stop.prophet import Prophet
from foretell.recipes.recipe import Recipe


class DecideOptions(TypedDict, total=False):
    """The keywords of `decide`."""

    template: str | DecisionTemplate | None  # the wording: one of the model's templates, or your own (default: by kind)
    think: int | None  # masks to think in before the answers (default: the template's); 0 leaves no room
    recipe: str | Recipe | Certificate | PathLike[str] | None  # how to decode (default: the template's)
    steps: int | None  # the most steps; 1 is a single reading (default: one per mask)
    orders: (
        int | None
    )  # 2 also reads reversed choices, 1 does not (default: the template's, else where unsure; 1 if calibrated)
    on_unsure: str  # answer (default), abstain, or full: spend the remaining steps
    sure: float  # an answer is unsure if its best label is less likely, calibrated if it can be (default: 0.9)
    label_mass: bool  # whether the probability of all labels together is computed, which needs the whole vocabulary
    on_mismatch: str  # if a tuned recipe is not for this model: warn (default), full or fail
    seed: int


def make_base(engine: Engine, recipe: str | Recipe | Certificate, options: DecideOptions) -> RequestTemplate:
    """Return the recipe, the seed and the notes that all requests of a decision share."""
    given: GenerateOptions = {"recipe": recipe}
    if "on_mismatch" in options:
        given["on_mismatch"] = options["on_mismatch"]
    return engine.slot_template(**given | {"steps": options.get("steps"), "seed": options.get("seed", 0)})


def choose_template(
    engine: Engine, questions: Mapping[str, Asked], given: str | DecisionTemplate | None
) -> DecisionTemplate:
    """Return a given template, or one of the model's by name or for these questions."""
    if isinstance(given, DecisionTemplate):
        check_template(given)
        return given
    return find_template(decision_templates(engine.layouts), questions, given)


def read_calibration(recipe: object, asked: str, options: DecideOptions) -> tuple[Calibration | None, tuple[str, ...]]:
    """Return the calibration in a tuned file, unless it does not hold for the questions, the template or the options.

    It was learned from one reading per question with all steps of the recipe.
    """
    if not isinstance(recipe, Certificate) or recipe.decisions is None:
        return None, ()
    found = Calibration.read(recipe.decisions)
    if found.template != asked:
        other = "for another template or other questions"
    elif options.get("steps") is not None:
        other = "not for a limit of steps"
    elif options.get("orders") not in (None, 1):
        other = "for one reading, not for two orders"
    elif options.get("on_unsure") == "full":
        other = "not for answers that spend the remaining steps"
    else:
        return found, ()
    says = f"the calibration of this file is {other}, so it is not used"
    if options.get("on_mismatch") == "fail":
        raise RequestError(says)
    return None, (says,)


def check_recipe(base: RequestTemplate, layout: Layout) -> None:
    """Raise RequestError if a recipe cannot decode slots."""
    if base.recipe.sample != Greedy():
        raise RequestError(f"a decision takes the most likely labels, so sample must be greedy, got {base.recipe}")
    if base.recipe.region.sought:
        raise RequestError(f"the answers of a decision are its slots, so nothing is searched for, got {base.recipe}")
    for rule in each(base.recipe.stop):
        if isinstance(rule, Prophet) and rule.reduce == "mean" and len(layout.slots) != layout.length:
            averaged = sum(slot.length for slot in layout.slots)
            if averaged > 1:
                raise RequestError(
                    "a mean gap hides the least certain of several slots or tokens; use stop=prophet(reduce=min)"
                )

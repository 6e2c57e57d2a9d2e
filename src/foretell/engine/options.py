"""The options of a request, under the names that other decoders use, and how they become a recipe and a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike
from types import NoneType
from typing import Any, TypedDict

from foretell.engine.certificate import WINDOW_OPTIONS, Backend, Certificate, recipe_of, stop_of
from foretell.engine.codec import Codec
from foretell.engine.hints import hint_for
from foretell.engine.request import LONGEST, Layout, Request, lay_out
from foretell.errors import LayoutError, RequestError, one_of, show, unknown, whole
from foretell.loop.checks import ask_reads
from foretell.loop.protocols import Score, Stop, Transfer
from foretell.policies.region.fixed import Fixed
from foretell.policies.sample.gumbel import Gumbel
from foretell.policies.sample.nucleus import Nucleus
from foretell.policies.score.confidence import Confidence
from foretell.policies.score.entropy import Entropy
from foretell.policies.score.margin import Margin
from foretell.policies.score.random import Random
from foretell.policies.stop.combined import read_files
from foretell.policies.stop.never import Never
from foretell.policies.transfer.entropy_bound import EntropyBound
from foretell.policies.transfer.threshold import Threshold
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe, split_recipe
from foretell.recipes.text import format_value, name_of

ALIASES = {
    "gen_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_gen_toks": "max_new_tokens",
    "diffusion_steps": "steps",
    "max_denoising_steps": "steps",
    "num_inference_steps": "steps",
    "block_size": "block_length",
    "alg": "remasking",
    "dynamic_threshold": "threshold",
    "eb_threshold": "entropy_bound",
    "stop_string": "stop_strings",
    "stop_sequences": "stop_strings",
    "until": "stop_strings",
}
REMASKINGS: dict[str, Score] = {
    "low_confidence": Confidence(),
    "confidence": Confidence(),
    "maskgit_plus": Confidence(),
    "random": Random(),
    "topk_margin": Margin(),
    "margin": Margin(),
    "entropy": Entropy(),
}
ON_MISMATCH = ("warn", "full", "fail")
WINDOW = 256  # default number of generated positions
ANSWER = 5  # default number of answer tokens after a suffix, as in the released code
KINDS: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    (("recipe",), (str, Recipe, Certificate, PathLike), "a recipe, its text, or the file of a certified one"),
    (("layout", "remasking", "suffix", "settings"), (str, NoneType), "a text"),
    (("pins",), (Mapping, NoneType), "a mapping from window offsets to token ids or texts"),
    (("answer_start",), (int, NoneType), "a whole number"),
)
NO_REGION = (
    "this window has no answer region, so {rule} never stops early and the transfer alone decides; give a suffix and "
    "an answer length, a region that is found in the text (region=delimiter), or region=masked to read every mask"
)

FOR_WINDOWS = (*WINDOW_OPTIONS, "pins", "chat", "stop_strings")  # options that a fill does not take
NEEDS_FILE = "on_mismatch={} needs the file of a certificate: recipe=tuned.json or stop=tuned.json"
NO_TEXT = "this model's folder has no tokenizer, so the completion has tokens but no text"


class GenerateOptions(TypedDict, total=False):
    """The keywords of `generate`, `stream` and `template`; `Options` explains them."""

    recipe: str | Recipe | Certificate | PathLike[str]
    settings: str | None
    layout: str | None
    max_new_tokens: int | None
    steps: int | None
    block_length: int | None
    remasking: str | None
    threshold: float | None
    entropy_bound: float | None
    suffix: str | None
    answer_length: int | None
    answer_start: int | None
    pins: Mapping[int, int | str] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    cfg_scale: float | None
    stop_at_eos: bool | None
    stop: Stop | Certificate | str | PathLike[str] | None
    on_mismatch: str
    stop_strings: str | Sequence[str] | None
    chat: bool | None
    special_tokens: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Options:
    """Everything `generate` accepts. None means the model's default, or else the value of the recipe."""

    recipe: str | Recipe | Certificate = "full"
    settings: str | None = None  # changes to the recipe, such as "stop.tau.high=8"; the options below override them
    layout: str | None = None  # the name of a layout that the model's folder describes
    max_new_tokens: int | None = None  # length of the window
    steps: int | None = None  # maximum number of steps
    block_length: int | None = None  # length of a block in tokens
    remasking: str | None = None  # order in which masks are filled, such as "low_confidence" or "random"
    threshold: float | None = None  # fill all masks of at least this confidence at once
    entropy_bound: float | None = None  # fill as many masks at once as this entropy budget allows
    suffix: str | None = None  # text that is pinned before the answer
    answer_length: int | None = None  # number of tokens of the answer
    answer_start: int | None = None  # position of the answer in the window (default: at its end)
    pins: Mapping[int, int | str] | None = None  # window offset -> token id, or a text that starts there
    temperature: float | None = None  # None: greedy
    top_p: float | None = None
    top_k: int | None = None
    cfg_scale: float | None = None  # scale of classifier-free guidance
    stop_at_eos: bool | None = None  # compute nothing after the end of the text
    stop: Stop | Certificate | None = None  # replaces the recipe's stopping rule
    on_mismatch: str = "warn"  # if a certificate does not hold: warn, decode in full, or fail
    stop_strings: tuple[str, ...] | None = None  # the finished text is cut before the first of them
    chat: bool | None = None  # format text with the chat template; by default if the folder has one
    special_tokens: bool = False  # treat special tokens in a chat message as tokens; otherwise as plain text
    seed: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return options from keyword arguments or their aliases. Raises RequestError for any other keyword."""
        known = {field.name for field in fields(cls)}
        named: dict[str, Any] = {}
        for name, value in given.items():
            ours = ALIASES.get(name, name)
            if ours not in known:
                raise RequestError(hint_for(name, value) or unknown("argument", name, known))
            if ours in named:
                raise RequestError(f"{name!r} is another name for {ours!r}, which is also given")
            named[ours] = value
        for name, value in named.items():
            _check_type(name, value)
        if "recipe" in named:
            named["recipe"] = recipe_of(named["recipe"])
        if named.get("stop") is not None:
            named["stop"] = stop_of(named["stop"])
        if named.get("stop_strings") is not None:
            named["stop_strings"] = _stop_strings(named["stop_strings"])
        made = cls(**named)
        if made.certificate is None and made.on_mismatch != "warn":
            raise RequestError(NEEDS_FILE.format(made.on_mismatch))
        return made

    @property
    def certificate(self) -> Certificate | None:
        """The certificate that the recipe or the stopping rule comes from. Raises RequestError if both have one."""
        found = [one for one in (self.recipe, self.stop) if isinstance(one, Certificate)]
        if len(found) > 1:
            raise RequestError(
                "recipe and stop are both files of certificates; give only one of them: recipe=FILE decodes with the "
                "whole recipe, stop=FILE uses only its stopping rule"
            )
        return found[0] if found else None

    def with_defaults(self, defaults: Options) -> Options:
        """Return these options, with a model's `defaults` for those that are None."""
        missing = {
            field.name: getattr(defaults, field.name) for field in fields(self) if getattr(self, field.name) is None
        }
        return replace(self, **missing)


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The layout and recipe that follow from the options of a call, shared by all its requests."""

    layout: Layout
    recipe: Recipe
    seed: int
    notes: tuple[str, ...] = ()
    chat: bool | None = None
    stop_strings: tuple[str, ...] = ()
    special_tokens: bool = False
    fills: bool = False  # for texts with masks; each of them has its own layout
    trace: bool = False  # record every step, also if the call does not ask for traces


def _check_type(name: str, value: object) -> None:
    """Raise RequestError unless a value has the type in `Options`; other numbers are checked where they are used."""
    if name in ("chat", "stop_at_eos") and not isinstance(value, bool | None):
        raise RequestError(f"{name} must be True, False or None, got {show(value)}")
    if name == "special_tokens" and not isinstance(value, bool):
        raise RequestError(f"special_tokens must be True or False, got {show(value)}")
    if name == "on_mismatch":
        one_of("on_mismatch", value, ON_MISMATCH, RequestError)
    for names, kinds, words in KINDS:
        if name in names and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise RequestError(f"{name} must be {words}, got {show(value)}")


def _stop_strings(given: object) -> tuple[str, ...]:
    strings = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if not all(isinstance(one, str) and one for one in strings):
        raise RequestError(f"stop_strings must be a non-empty string or a list of them, got {show(given)}")
    return strings


def adapt_to_fills(preset: Recipe) -> Recipe:
    """Return a preset as texts with masks use it: all masks are one block, and none becomes the end of the text."""
    return replace(preset, block_length=None, ban_eos=True)


def adapt_to_slots(preset: Recipe) -> Recipe:
    """Return a preset as decisions use it: all masks are one block."""
    return replace(preset, block_length=None)


def make_fill_template(options: Options, adapt: Callable[[Recipe], Recipe] = adapt_to_fills) -> RequestTemplate:
    """Decide the recipe of a call that fills masks in place.

    By default, all masks are one block, and none becomes the end of the text (`block_length=32 ban_eos=false` in the
    recipe's text changes that); `adapt` does this to presets. Raises RequestError for options that describe a window:
    each text is its own window.
    """
    for name in FOR_WINDOWS:
        if getattr(options, name) is not None:
            raise RequestError(
                f"{name}={show(getattr(options, name))} is for a window after a prompt; texts with masks have none"
            )
    recipe = _recipe(options, adapt)
    read_files(recipe.stop)
    whole("seed", options.seed, 0, 2**63 - 1, RequestError)
    return RequestTemplate(Layout(1, answer=(0, 1)), recipe, options.seed, fills=True)


def make_template(options: Options, codec: Codec, layouts: Mapping[str, Any]) -> RequestTemplate:
    """Decide the window, the pinned tokens and the recipe of a call."""
    if isinstance(options.recipe, Certificate):
        more = certified_options(options.recipe, options)
        if "layout" not in more and not {*WINDOW_OPTIONS}.isdisjoint(more):
            layouts = {}  # the window is complete
        options = replace(options, **more)
    preferred = Options(**model_defaults(options, layouts))
    recipe = _recipe(options, partial(_apply, preferred))
    read_files(recipe.stop)
    layout = _layout(options.with_defaults(preferred), codec)
    whole("seed", options.seed, 0, 2**63 - 1, RequestError)
    notes = () if can_stop(recipe, layout) else (NO_REGION.format(rule=name_of(recipe.stop)),)
    strings = options.stop_strings or ()
    return RequestTemplate(layout, recipe, options.seed, notes, options.chat, strings, options.special_tokens)


def apply_certificate(
    template: RequestTemplate,
    certificate: Certificate,
    on_mismatch: str,
    backend: Backend,
    *,
    complete: bool,
    chat: bool | None = None,
) -> RequestTemplate:
    """Add the remarks of a certificate. If it does not hold, decode in full (full), or raise RequestError (fail).

    `complete`: the certificate is the request's recipe, not only its stopping rule. `chat` as in `differences`.
    """
    asked = template.recipe, template.layout, backend
    about: Any = {"fills": template.fills, "complete": complete, "chat": chat}
    notes = certificate.remarks(*asked, **about)
    if on_mismatch != "warn" and certificate.differences(*asked, **about):
        if on_mismatch == "fail":
            raise RequestError(notes[-1])
        full = certificate.compared_with if complete else replace(template.recipe, stop=Never())
        instead = (
            f"it is decoded with {full} instead"
            if complete
            else "the rule is not used, and decoding does not stop early"
        )
        template, notes = replace(template, recipe=full), (*notes, f"so {instead} (on_mismatch=full)")
    return replace(template, notes=(*template.notes, *notes))


def can_stop(recipe: Recipe, layout: Layout) -> bool:
    """Return whether the stopping rule has positions to read; true if there is no rule."""
    if recipe.stop == Never() or recipe.region.sought:
        return True
    return bool(ask_reads(recipe.stop, lay_out([Request((), layout, recipe)], mask_id=-1)).any())


def without_text(template: RequestTemplate) -> RequestTemplate:
    """Add a note that there is no tokenizer. Raises RequestError if the recipe has to read text."""
    if template.recipe.region.sought:
        region = format_value(template.recipe.region)
        raise RequestError(f"region={region} looks for the answer in the text, and the model's folder has no tokenizer")
    if template.stop_strings:
        raise RequestError(
            f"stop_strings={template.stop_strings} cut the text, and the model's folder has no tokenizer"
        )
    return replace(template, notes=(*template.notes, NO_TEXT))


def certified_options(certificate: Certificate, given: Options) -> dict[str, Any]:
    """Return the options that a recipe was certified with; the window's only if the request does not describe it."""
    described = WINDOW_OPTIONS if any(getattr(given, name) is not None for name in WINDOW_OPTIONS) else ()
    return {
        name: value
        for name, value in certificate.options.items()
        if name not in described and getattr(given, name) is None
    }


def model_defaults(options: Options, layouts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the requested layout, or the default one, as the model's folder describes it."""
    described = layouts.get("layouts", {})
    name = options.layout or layouts.get("default")
    if name is None:
        return {}
    if not described:
        raise RequestError(f"this model has no layouts, so {show(name)} is unknown")
    if name not in described:
        raise RequestError(unknown("layout", name, described))
    found: Mapping[str, Any] = described[name]
    return found


def _recipe(options: Options, prefer: Callable[[Recipe], Recipe]) -> Recipe:
    """Return the recipe of a request.

    `prefer` changes the preset; then the settings in the recipe's text apply, then `settings`, then the options. A
    certified recipe is complete, so nothing is preferred to it.
    """
    given = options.recipe.chosen if isinstance(options.recipe, Certificate) else options.recipe
    _, settings = split_recipe(f"full {options.settings or ''}")
    return _apply(options, parse(given, prefer).adjusted(*settings))


def _apply(options: Options, recipe: Recipe) -> Recipe:
    certified = options.stop if isinstance(options.stop, Certificate) else None
    changes: dict[str, Any] = {
        "steps": options.steps,
        "block_length": options.block_length,
        "guidance": options.cfg_scale,
        "stop_at_eos": options.stop_at_eos,
        "score": options.remasking and _remasking(options.remasking),
        "sample": _sample(options),
        "transfer": _transfer(options),
        "stop": options.stop if certified is None else certified.rule,
        # A rule reads the region it was certified for, unless the recipe names one.
        "region": None if certified is None or recipe.region != Fixed() else certified.chosen.region,
    }
    return replace(recipe, **{name: value for name, value in changes.items() if value is not None})


def _remasking(name: str) -> Score:
    if name == "origin":  # Dream's name for a transfer, not for an order of masks
        raise RequestError(
            "remasking 'origin' fills masks at random; write recipe=\"dream transfer=timesteps(independent=true)\""
        )
    one_of("remasking", name, REMASKINGS)
    return REMASKINGS[name]


def _transfer(options: Options) -> Transfer | None:
    if options.threshold is not None and options.entropy_bound is not None:
        raise RequestError(
            f"threshold={show(options.threshold)} and entropy_bound={show(options.entropy_bound)} both choose which "
            "masks are filled at once; give only one of them"
        )
    if options.threshold is not None:
        return Threshold(options.threshold)
    return None if options.entropy_bound is None else EntropyBound(options.entropy_bound)


def _sample(options: Options) -> Gumbel | Nucleus | None:
    if options.top_p is not None or options.top_k is not None:
        temperature = 1.0 if options.temperature is None else options.temperature
        top_p = 1.0 if options.top_p is None else options.top_p
        return Nucleus(temperature, top_p, options.top_k or 0)
    if options.temperature is None:
        return None
    return Gumbel(options.temperature)


def _layout(options: Options, codec: Codec) -> Layout:
    length = WINDOW if options.max_new_tokens is None else options.max_new_tokens
    whole("max_new_tokens", length, 1, LONGEST, RequestError)
    pins = _pins(options.pins or {}, codec)
    if not options.suffix and options.answer_length is None:
        if options.answer_start is not None:
            raise LayoutError(f"answer_start={show(options.answer_start)} needs an answer_length or a suffix")
        return Layout(length, tuple(sorted(pins.items())))
    suffix = codec.encode(options.suffix) if options.suffix else []
    answer = ANSWER if options.answer_length is None else options.answer_length
    whole("answer_length", answer, 1, LONGEST, RequestError)
    if options.answer_start is not None:
        whole("answer_start", options.answer_start, 0, LONGEST, RequestError)
    suffixed = Layout.with_suffix(length, suffix, answer, options.answer_start)
    for offset, _ in suffixed.pins:
        if offset in pins:
            raise LayoutError(f"position {offset} is pinned, but the suffix {show(options.suffix)} needs it too")
    return Layout(length, tuple(sorted((pins | dict(suffixed.pins)).items())), suffixed.answer)


def _pins(pins: Mapping[int, int | str], codec: Codec) -> dict[int, int]:
    """Return the pinned token of each offset, with texts encoded."""
    tokens_at: dict[int, int] = {}
    for offset, what in pins.items():
        if not isinstance(what, int | str) or isinstance(what, bool):
            raise RequestError(f"pins map a window offset to a token id or a text, got {show(what)} at {show(offset)}")
        whole("a pinned offset", offset, 0, LONGEST, RequestError)
        tokens = codec.encode(what) if isinstance(what, str) else [what]
        tokens_at |= {offset + i: token for i, token in enumerate(tokens)}
    return tokens_at

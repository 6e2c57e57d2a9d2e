"""Certified recipes on disk: a recipe, its risk, and the model and window that this is valid for.

`certify` writes them; this module reads them and compares them with the requests that use them, either as a recipe
(recipe=tuned.json) or only for its stopping rule (stop=tuned.json).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from foretell.engine.request import Layout
from foretell.errors import ForetellError, RecipeError, RequestError, StorageError, one_of, show, whole, within
from foretell.loop.protocols import Stop
from foretell.models.family import read_json
from foretell.policies.stop.combined import changed, read_files
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.never import Never
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import format_value, is_untrusted, parse_value, untrusted
from foretell.storage import check_format, check_keys, convert, load_json, write_file
from foretell.version import __version__

FORMAT = 1
OLD = "foretell_rule"  # the key of the format that held only a stopping rule
WITHOUT_DIGEST = "0.1.0"  # the version that wrote files without a digest
NO_DIGEST = "the file of this certificate has no digest, so edits cannot be detected; calibrate again"
NOT_A_RULE = "; to cut the finished text at a string, use stop_strings (--stop-string)"
COSTS = ("steps", "forwards", "columns", "seconds")
WINDOW_OPTIONS = ("layout", "max_new_tokens", "suffix", "answer_length", "answer_start")  # of `generate`
ELSEWHERE = ("recipe", "rungs", "sealed", "report")  # fields that are not in the file's "certificate"
MODEL_FILES = (
    *("config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*.json", "vocab.json", "merges.txt", "added_tokens.json", "chat_template*"),
)
Pair = Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class Backend:
    """The checkpoint that decodes, and how it runs. If any of it differs, tokens may differ."""

    model_sha256: str
    dtype: str | None
    device: str  # its type
    compile: bool
    torch: str  # version


@dataclass(frozen=True, slots=True)
class Certificate:
    """A recipe whose risk is at most `risk` with confidence `confidence`, for the model and window named here.

    If nothing could be certified, `certified` is false, the recipe is the one it was compared with, and `says` gives
    the reason.
    """

    recipe: str  # complete, with its stopping rule
    certified: bool
    says: str  # the certificate in one sentence
    against: str  # the recipe it was compared with, which never stops early
    fills: bool  # whether it is for texts with masks
    window: int | None  # length; None: it differs by example, and window and answer are not compared
    answer: Pair | None  # offset and length of the answer region, if the layout has one
    pins: list[Pair] | None  # (offset, token) of each pinned token; None: they differ by example
    options: dict[str, str | int | bool]  # defaults of a request for its window and chat template
    model: str  # the model's name when it was certified
    model_sha256: str
    dtype: str | None
    device: str | None  # type of device; here and below, None is unknown and not compared
    compile: bool | None
    torch: str | None  # version
    task: str | None  # None: the user's prompts
    examples_sha256: str
    examples: int  # size of the calibration set
    pilot: int  # number of examples that were used to search
    seed: int
    loss: str  # a name, or the place of a user's function, such as mine.py:loss
    risk: float
    confidence: float
    look: int  # the number of this certification on its calibration set, from 1
    delta: float  # the error probability of this look
    empirical_risk: float  # mean loss on the calibration set
    upper_bound: float  # confidence bound of this recipe's risk; the promise is `risk`
    cost: str  # one of COSTS
    speedup: float  # by `cost`, on the calibration set
    ladder: str  # name of the ladder
    rungs: list[str]  # the recipes of the ladder, from safe to fast
    rung: int | None  # index of the certified recipe; None: nothing is certified
    version: str  # of Foretell
    decisions: dict[str, Any] | None = None  # the calibration of typed decisions; `decide.calibration` reads it
    sealed: bool = True  # whether its file has a digest
    report: dict[str, Any] | None = field(default=None, repr=False)  # tables for people, not interpreted here

    def __post_init__(self) -> None:
        one_of("cost", self.cost, COSTS, RequestError)
        check_keys(self.options, (*WINDOW_OPTIONS, "chat"), RequestError)
        for name, least in (("window", 1), ("examples", 1), ("pilot", 0), ("look", 1)):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least, error=RequestError)
        for name in ("risk", "confidence", "delta", "empirical_risk", "upper_bound"):
            within(name, getattr(self, name), 0.0, 1.0, RequestError)
        within("speedup", self.speedup, 0.0, error=RequestError)
        self._check_rung()
        if self.compared_with.stop != Never():
            raise RequestError(f"against must be a recipe that never stops early, got {self.against}")
        _ = self.chosen  # raises if it is no recipe

    def _check_rung(self) -> None:
        if self.certified != (self.rung is not None):
            raise RequestError(f"certified is {str(self.certified).lower()}, but the rung is {self.rung}")
        if self.rung is None:
            if self.recipe != self.against:
                raise RequestError(f"nothing is certified, so the recipe must be {self.against}, got {self.recipe}")
            return
        whole("rung", self.rung, 0, len(self.rungs) - 1, RequestError)
        if self.recipe != self.rungs[self.rung]:
            raise RequestError(f"the recipe is not rung {self.rung} of the ladder, which is {self.rungs[self.rung]}")

    @property
    def chosen(self) -> Recipe:
        return parse(self.recipe)

    @property
    def rule(self) -> Stop:
        return self.chosen.stop

    @property
    def compared_with(self) -> Recipe:
        with untrusted():  # a file may name it, and no file that it names is needed
            return parse(self.against)

    def save(self, path: str | Path) -> None:
        """Write the certificate atomically. Raises StorageError if the file cannot be written."""
        folder = Path(path).absolute().parent

        def beside(text: str) -> str:
            # A judge's path is stored relative to the file's folder, so that both files can be moved together.
            return _move_judges(text, parse(text), lambda judge: os.path.relpath(judge, folder))

        shown = {name: value for name, value in asdict(self).items() if name not in ELSEWHERE}
        if self.decisions is None:
            del shown["decisions"]
        rungs = [beside(text) for text in self.rungs]
        content = {"foretell_tuned": FORMAT, "recipe": beside(self.recipe), "rungs": rungs, "certificate": shown}
        if self.report is not None:
            content["report"] = json.loads(json.dumps(self.report))  # as it will be read, so that the digest fits
        if self.sealed:
            content["sha256"] = _digest(content)
        write_file(path, _write_lines(content))

    def remarks(
        self,
        recipe: Recipe,
        layout: Layout,
        backend: Backend | None = None,
        *,
        fills: bool = False,
        complete: bool = False,
        chat: bool | None = None,
    ) -> tuple[str, ...]:
        """Return warnings about decoding a request with this file; a backend that is None is not compared.

        `complete`: the file is used as a recipe. Otherwise the request has its own recipe, and only the stopping rule
        is that of the file. `chat` as in `differences`.
        """
        if not self.certified:
            return (f"{'nothing is certified' if complete else 'this rule never stops'}: {self.says}",)
        if not complete and self.rule == Never():
            return ("this rule never stops, because the certified recipe does not; use the file as a recipe",)
        notes = () if self.sealed else (NO_DIGEST,)
        if backend is not None:
            notes = (*notes, *self._versions(backend))
        differs = self.differences(recipe, layout, backend, fills=fills, complete=complete, chat=chat)
        if not differs:
            return notes
        what = "recipe" if complete else "stopping rule"
        unknown_risk = f"the certificate of this {what} does not hold here, so its risk is unknown"
        return (*notes, f"{unknown_risk} (tune or calibrate again): {'; '.join(differs)}")

    def differences(
        self,
        recipe: Recipe,
        layout: Layout,
        backend: Backend | None = None,
        *,
        fills: bool = False,
        complete: bool = False,
        chat: bool | None = None,
    ) -> list[str]:
        """Return how a request differs from what was certified; empty for a rule that never stops, which is safe.

        `chat` is None if the chat template is used as it was, otherwise it says whether it is applied now.
        """
        if not self.certified or (not complete and self.rule == Never()):
            return []
        model = () if backend is None else self._backend(backend)
        prompts = () if chat is None else (f"the chat template is {'applied' if chat else 'left out'}",)
        return [*model, *self._recipe(recipe, complete=complete), *self._layout(layout, fills=fills), *prompts]

    def _backend(self, here: Backend) -> Iterator[str]:
        if here.model_sha256 != self.model_sha256:
            yield f"the model is not {self.model} (sha256 {self.model_sha256[:12]})"
        if None not in (here.dtype, self.dtype) and here.dtype != self.dtype:
            yield f"the model runs in {here.dtype}, not {self.dtype}"
        if self.device is not None and here.device != self.device:
            yield f"the device is {here.device}, not {self.device}"
        if self.compile is not None and here.compile != self.compile:
            yield "the model is compiled" if here.compile else "the model is not compiled"

    def _versions(self, here: Backend) -> Iterator[str]:
        pairs = (("torch", self.torch, here.torch), ("foretell", self.version, __version__))
        other = [f"{name} {there}, not {now}" for name, there, now in pairs if there not in (None, now)]
        if other:
            yield f"certified with {' and '.join(other)}; in rare cases this changes a token"

    def _recipe(self, recipe: Recipe, *, complete: bool) -> Iterator[str]:
        mine = self.chosen
        for name in (one.name for one in fields(Recipe) if complete or one.name != "stop"):
            there, here = getattr(mine, name), getattr(recipe, name)
            if there != here:
                yield f"{name} is {_text_of(here)}, not {_text_of(there)}"

    def _layout(self, layout: Layout, *, fills: bool) -> Iterator[str]:
        if fills != self.fills:
            yield "it is for texts with masks" if self.fills else "it is for windows after a prompt, not for masks"
            return
        if self.fills:  # each text is its own window
            return
        if self.window is not None and layout.length != self.window:
            yield f"the window has {layout.length} positions, not {self.window}"
        if self.window is not None and layout.answer != (self.answer and tuple(self.answer)):
            yield f"the answer is {_region(layout.answer)}, not {_region(self.answer)}"
        if self.pins is not None and [*map(list, layout.pins)] != self.pins:
            yield "other tokens are pinned"


class TunedFile(msgspec.Struct, forbid_unknown_fields=True):
    """The format of a certificate's file."""

    foretell_tuned: int
    recipe: str
    rungs: list[str]
    certificate: dict[str, Any]
    report: dict[str, Any] | None = None
    sha256: str | None = None


class RuleFile(msgspec.Struct, forbid_unknown_fields=True):
    """The format of older files, which held only a stopping rule."""

    foretell_rule: int
    stop: str
    certificate: dict[str, Any]
    sha256: str | None = None


class OldCertificate(msgspec.Struct):
    """The entries of an older file that are stored differently today."""

    certified: bool
    recipe: str  # without its stopping rule
    against: str
    confidence: float
    family: str
    setting: float | None


def read_certificate(path: str | PathLike[str]) -> Certificate:
    """Load a file that `Certificate.save` wrote. Raises StorageError if it is missing or damaged."""
    value = load_json(path, "certified recipe")
    try:
        return _certificate(value, Path(path).parent)
    except ForetellError as error:
        raise StorageError(f"{path} is not a certified recipe or stopping rule: {error}") from error


def recipe_of(given: str | Recipe | Certificate | PathLike[str]) -> str | Recipe | Certificate:
    """Return the given recipe, or the certificate in the .json file that it names."""
    if isinstance(given, str) and not given.endswith(".json"):
        name, *settings = given.split() or [""]
        if name.endswith(".json"):
            raise RecipeError(
                f"{show(given)}: a recipe's file takes no settings after its name; give them as options (steps=16), "
                f"with --set, or as settings={show(' '.join(settings))}, but then its certificate does not hold"
            )
        return given
    if isinstance(given, str | PathLike):
        _check_trusted("recipe", given)
        return read_certificate(given)
    return given


def stop_of(given: object) -> Stop | Certificate:
    """Return a stopping rule that is given as an object, as text, or as the .json file of a certified one."""
    if isinstance(given, Certificate):
        return given
    if isinstance(given, PathLike) or (isinstance(given, str) and given.endswith(".json")):
        _check_trusted("stop", given)
        return read_certificate(given)
    if isinstance(given, str):
        try:
            rule: Stop = parse_value(Stop, given, "stop")
        except RecipeError as error:
            raise RecipeError(f"{error}{NOT_A_RULE}") from error
        return rule
    if not callable(given) or not hasattr(given, "reads"):
        kinds = "a rule, its text, or the file of a certified one"
        raise RequestError(f"stop must be {kinds}, got {show(given)}{NOT_A_RULE}")
    return cast("Stop", given)


def model_hash(folder: Path) -> str:
    """Return a sha256 over config, tokenizer, chat template and weights, in the order of their names."""
    digest = hashlib.sha256()
    found = {path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()}
    names, config = folder / "special_tokens_map.json", folder / "tokenizer_config.json"
    if read_json(names).keys() - read_json(config).keys():  # names that the config repeats are hashed only there
        found.add(names)
    for path in sorted(found):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _check_trusted(name: str, given: object) -> None:
    if is_untrusted():
        raise RequestError(f"{name}={str(given)!r:.80} names a file, and a request may not open files")


def _move_judges(text: str, recipe: Recipe, place: Callable[[str], str]) -> str:
    """Return the text of a recipe, with the paths of its judges replaced."""
    moved = changed(recipe.stop, lambda one: replace(one, path=place(one.path)) if isinstance(one, Judge) else one)
    return text if moved == recipe.stop else str(replace(recipe, stop=moved))


def _certificate(value: Any, folder: Path) -> Certificate:
    if isinstance(value, Mapping) and OLD in value:
        check_format(value, OLD, FORMAT)
        old = convert(value, RuleFile)
        _check_digest(value, old)
        file = _convert_old(old)
    else:
        check_format(value, "foretell_tuned", FORMAT)
        file = convert(value, TunedFile)
        _check_digest(value, file)

    def beside(text: str) -> str:
        with untrusted():  # so that a judge's file is opened only if its whole sha256 is given
            recipe = parse(text)
        return _move_judges(text, recipe, lambda judge: str(folder / judge))

    check_keys(file.certificate, [one.name for one in fields(Certificate) if one.name not in ELSEWHERE])
    stored = {"recipe": beside(file.recipe), "rungs": [beside(text) for text in file.rungs]}
    kept = {"sealed": file.sha256 is not None, "report": file.report}
    found = convert({**file.certificate, **stored, **kept}, Certificate)
    read_files(found.rule)
    return found


def _convert_old(file: RuleFile) -> TunedFile:
    """Convert an older file to the current format: a ladder with one rung. Entries that it lacks are unknown."""
    names = [one.encode_name for one in msgspec.structs.fields(OldCertificate)]
    part = convert({name: file.certificate[name] for name in names if name in file.certificate}, OldCertificate)
    with untrusted():
        rule: Stop = parse_value(Stop, file.stop, "stop")
        recipe = str(replace(parse(part.recipe), stop=rule))
    same = {name: value for name, value in file.certificate.items() if name not in ("recipe", "family", "setting")}
    unknown: dict[str, Any] = {"device": None, "compile": None, "torch": None, "options": {}, "pilot": 0}
    look = {"look": 1, "delta": round(1 - part.confidence, 12), "cost": "steps", "ladder": part.family}
    rung = {"rung": 0 if part.certified else None, "fills": False}
    return TunedFile(
        foretell_tuned=FORMAT,
        recipe=recipe if part.certified else part.against,
        rungs=[recipe] if part.certified else [],
        certificate={**unknown, **look, **rung, **same},
        sha256=file.sha256,
    )


def _check_digest(value: Mapping[str, Any], file: TunedFile | RuleFile) -> None:
    """Raise StorageError if the digest in a file is not that of its content."""
    if file.sha256 is None:
        if file.certificate.get("version") != WITHOUT_DIGEST:
            raise StorageError("its digest ('sha256') is missing; calibrate again")
        return
    digest = _digest({name: one for name, one in value.items() if name != "sha256"})
    if digest != file.sha256:
        raise StorageError(
            f"it was edited: the digest of its content is {digest:.12}, not {file.sha256:.12}; calibrate again"
        )


def _digest(content: Mapping[str, Any]) -> str:
    """Return a sha256 of JSON that does not depend on the order of keys or on white space."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _write_lines(content: Mapping[str, Any]) -> str:
    """Return JSON with one line per key, also of what is inside, so that people can read and compare files."""

    def written(value: Any, indent: int) -> str:
        if indent > 2 or not value or not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False)
        keys = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
        inner = value.values() if isinstance(value, dict) else value
        lines = [" " * indent + key + written(one, indent + 1) for key, one in zip(keys, inner, strict=True)]
        opened, closed = "{}" if isinstance(value, dict) else "[]"
        return f"{opened}\n" + ",\n".join(lines) + f"\n{' ' * (indent - 1)}{closed}"

    return written(content, 1) + "\n"


def _region(answer: Any) -> str:
    return "not declared" if answer is None else f"{answer[1]} tokens at {answer[0]}"


def _text_of(value: object) -> str:
    try:
        return format_value(value)
    except ForetellError:  # a policy that is not registered has no name
        return type(value).__name__

"""Certified stopping rules on disk: a rule, what was proven about it, and the model and recipe it holds for.

`certify.calibrate` writes them; this module reads them and compares them with the requests that use them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from foretell.engine.request import Layout
from foretell.errors import ForetellError, RecipeError, RequestError, StorageError, one_of, show, whole, within
from foretell.loop.protocols import Stop
from foretell.models.family import read_json
from foretell.policies.stop.combined import changed, read_files
from foretell.policies.stop.families import check_member
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.never import Never
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import format_value, is_untrusted, parse_value, untrusted
from foretell.storage import check_format, convert, load_json, write_file

FORMAT = 1
WITHOUT_DIGEST = "0.1.0"  # the version that wrote files without a digest
NO_DIGEST = "the file of this stopping rule has no digest, so edits cannot be detected; calibrate again"
NOT_A_RULE = "; to cut the finished text at a string, use stop_strings (--stop-string)"
LOSSES = ("consistency", "success")  # the answer differs from full decoding · wrong where full decoding is right
MODEL_FILES = (
    *("config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*.json", "vocab.json", "merges.txt", "added_tokens.json", "chat_template*"),
)
Pair = Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A stopping rule whose risk is at most `risk` with confidence `confidence`, for the model and recipe named here.

    If nothing could be proven, `certified` is false, the rule is `never`, and `says` gives the reason.
    """

    stop: str  # the rule
    certified: bool
    says: str  # the certificate in one sentence
    recipe: str  # what it holds for: the recipe without its stopping rule
    against: str  # the recipe it was compared with: the same one without stopping, or another
    window: int  # positions
    answer: Pair | None  # offset and length of the answer region, if the layout has one
    pins: list[Pair] | None  # (offset, token) of each pinned token; None if examples differ
    model: str  # its name at calibration
    model_sha256: str
    dtype: str | None
    task: str | None  # None: a set of prompts
    examples_sha256: str
    examples: int
    seed: int
    loss: str
    risk: float
    confidence: float
    empirical_risk: float  # mean loss on the calibration set
    upper_bound: float  # of this rule's risk; the guarantee is `risk`
    speedup: float  # in steps, on the calibration set
    family: str
    setting: float | None  # the chosen member of the family; None if none was chosen
    version: str  # of foretell
    sealed: bool = True  # whether its file has a digest

    def __post_init__(self) -> None:
        one_of("loss", self.loss, LOSSES, RequestError)
        whole("window", self.window, 1, error=RequestError)
        whole("examples", self.examples, 1, error=RequestError)
        for name in ("risk", "confidence", "empirical_risk", "upper_bound"):
            within(name, getattr(self, name), 0.0, 1.0, RequestError)
        within("speedup", self.speedup, 0.0, error=RequestError)
        if self.certified == (self.rule == Never()):
            raise RequestError(f"certified is {str(self.certified).lower()}, but the rule is {self.stop}")
        if replace(self.holds_for, stop=Never()) != self.holds_for:
            raise RequestError(f"recipe must leave the stopping rule out, got {self.recipe}")
        if replace(self.compared_with, stop=Never()) != self.compared_with:
            raise RequestError(f"against must be a recipe that never stops early, got {self.against}")

    @property
    def rule(self) -> Stop:
        rule: Stop = parse_value(Stop, self.stop, "stop")
        return rule

    @property
    def holds_for(self) -> Recipe:
        with untrusted():  # a file may name it, and no file that it names is needed
            return parse(self.recipe)

    @property
    def compared_with(self) -> Recipe:
        with untrusted():
            return parse(self.against)

    def save(self, path: str | Path) -> None:
        """Write the rule atomically. Raises StorageError if the file cannot be written."""
        shown, folder = asdict(self), Path(path).absolute().parent
        del shown["stop"], shown["sealed"]
        # A judge's path is stored relative to the rule's folder, so that both files can be moved together.
        beside = _move_judges(self.rule, lambda judge: os.path.relpath(judge, folder))
        head = {"foretell_rule": FORMAT, "stop": format_value(beside)}
        tail = {"sha256": _digest({**head, "certificate": shown})} if self.sealed else {}
        end = f",\n{_lines(tail)}" if tail else ""
        write_file(path, f'{{\n{_lines(head)},\n "certificate": {{\n{_lines(shown, indent=2)}\n }}{end}\n}}\n')

    def remarks(
        self, recipe: Recipe, layout: Layout, model_sha256: str | None = None, dtype: str | None = None
    ) -> tuple[str, ...]:
        """Return warnings about decoding a request with this rule; a model or dtype that is None is not compared."""
        if not self.certified:
            return (f"this rule never stops: {self.says}",)
        notes = () if self.sealed else (NO_DIGEST,)
        differs = self.differences(recipe, layout, model_sha256, dtype)
        if not differs:
            return notes
        unknown_risk = "the certificate of this stopping rule does not hold here, so its risk is unknown"
        return (*notes, f"{unknown_risk} (calibrate again): {'; '.join(differs)}")

    def differences(
        self, recipe: Recipe, layout: Layout, model_sha256: str | None = None, dtype: str | None = None
    ) -> list[str]:
        """Return in what a request differs from what was certified; a rule that never stops is safe everywhere."""
        if not self.certified:
            return []
        return [*self._model(model_sha256, dtype), *self._recipe(recipe), *self._layout(layout)]

    def _model(self, model_sha256: str | None, dtype: str | None) -> Iterator[str]:
        if model_sha256 is not None and model_sha256 != self.model_sha256:
            yield f"the model is not {self.model} (sha256 {self.model_sha256[:12]})"
        if dtype is not None and self.dtype is not None and dtype != self.dtype:
            yield f"the model runs in {dtype}, not {self.dtype}"

    def _recipe(self, recipe: Recipe) -> Iterator[str]:
        mine = self.holds_for
        for name in (field.name for field in fields(Recipe) if field.name != "stop"):
            there, here = getattr(mine, name), getattr(recipe, name)
            if there != here:
                yield f"{name} is {_text_of(here)}, not {_text_of(there)}"

    def _layout(self, layout: Layout) -> Iterator[str]:
        if layout.length != self.window:
            yield f"the window has {layout.length} positions, not {self.window}"
        if layout.answer != (self.answer and tuple(self.answer)):
            yield f"the answer is {_region(layout.answer)}, not {_region(self.answer)}"
        if self.pins is not None and [*map(list, layout.pins)] != self.pins:
            yield "other tokens are pinned"


class RuleFile(msgspec.Struct, forbid_unknown_fields=True):
    """The shape of a rule's file."""

    foretell_rule: int
    stop: str
    certificate: dict[str, Any]
    sha256: str | None = None


def read_certificate(path: str | PathLike[str]) -> Certificate:
    """Load a file that `Certificate.save` wrote. Raises StorageError if it is missing or damaged."""
    value = load_json(path, "stopping rule")
    try:
        return _certificate(value, Path(path).parent)
    except ForetellError as error:
        raise StorageError(f"{path} is not a stopping rule that calibrate wrote: {error}") from error


def stop_of(given: object) -> Stop | Certificate:
    """Return a stopping rule that is given as an object, as text, or as the .json file of a certified one."""
    if isinstance(given, Certificate):
        return given
    if isinstance(given, PathLike) or (isinstance(given, str) and given.endswith(".json")):
        if is_untrusted():
            raise RequestError(f"stop={str(given)!r:.80} names a file, and a request may not open files")
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


def _move_judges(rule: Stop, place: Callable[[str], str]) -> Stop:
    """Return the rule with the paths of its judges replaced."""
    return changed(rule, lambda one: replace(one, path=place(one.path)) if isinstance(one, Judge) else one)


def _certificate(value: Any, folder: Path) -> Certificate:
    check_format(value, "foretell_rule", FORMAT)
    file = convert(value, RuleFile)
    _check_digest(value, file)
    with untrusted():  # so that a judge is opened only with all its digits
        parsed = parse_value(Stop, file.stop, "stop")
    rule = _move_judges(parsed, lambda judge: str(folder / judge))
    read_files(rule)
    sealed = file.sha256 is not None
    found = convert({**file.certificate, "stop": format_value(rule), "sealed": sealed}, Certificate)
    if found.certified:
        if found.setting is None:
            raise StorageError("certified is true, but there is no setting")
        check_member(rule, found.family, found.setting, parallel=found.holds_for.transfer.parallel)
    return found


def _check_digest(value: Mapping[str, Any], file: RuleFile) -> None:
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


def _lines(values: Mapping[str, Any], indent: int = 1) -> str:
    """Return the inside of a JSON object, one line per key."""
    written = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return ",\n".join(" " * indent + line for line in written)


def _region(answer: Any) -> str:
    return "not declared" if answer is None else f"{answer[1]} tokens at {answer[0]}"


def _text_of(value: object) -> str:
    try:
        return format_value(value)
    except ForetellError:  # a policy that is not registered has no name
        return type(value).__name__

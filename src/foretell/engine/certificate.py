"""Certified stopping rules on disk: a rule as recipes spell it, and what was shown about it, for what model and recipe.

`lab.calibrate` writes them; here they are read, checked and compared with what they are used for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast, get_type_hints

from foretell.engine.request import Layout
from foretell.engine.trace_files import replacing
from foretell.errors import ForetellError, RecipeError, RequestError, one_of, unknown, whole, within
from foretell.loop.protocols import Stop
from foretell.models.tokenizer import read_json
from foretell.policies.stop.combined import changed, read_files
from foretell.policies.stop.judge import Judge
from foretell.policies.stop.never import Never
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe
from foretell.recipes.text import format_value, parse_value

FORMAT = 1
NOT_A_RULE = "; texts before which the finished text is cut are stop_strings (--stop-string)"
LOSSES = ("consistency", "success")  # another answer than full decoding's · wrong where full decoding is right
MODEL_FILES = (
    *("config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*.json", "vocab.json", "merges.txt", "added_tokens.json", "chat_template*"),
)
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True)
class Certificate:
    """A stopping rule whose risk is at most `risk` with confidence `confidence`, for the model and recipe named here.

    Where nothing could be shown, `certified` is false, the rule is `never`, and `says` has the reason.
    """

    stop: str  # the rule
    certified: bool
    says: str  # the whole of it in a sentence
    recipe: str  # what it holds for: everything but the rule
    against: str  # whose answers and steps it is compared with: the same without stopping, or another recipe
    window: int  # positions
    answer: list[int] | None  # offset and length of the answer region, where one is laid out
    pins: list[list[int]] | None  # (offset, token) of what is pinned; None if every example has its own
    model: str  # as it was named then
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
    upper_bound: float  # of the risk of this one rule; what is promised is `risk`
    speedup: float  # in steps, on the calibration set
    family: str
    setting: float | None  # the member of the family; None: none of them
    version: str  # of foretell

    def __post_init__(self) -> None:
        one_of("loss", self.loss, LOSSES)
        whole("window", self.window, 1)
        whole("examples", self.examples, 1)
        for name in ("risk", "confidence", "empirical_risk", "upper_bound"):
            within(name, getattr(self, name), 0.0, 1.0)
        within("speedup", self.speedup, 0.0)
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
        return parse(self.recipe)

    @property
    def compared_with(self) -> Recipe:
        return parse(self.against)

    def save(self, path: str | Path) -> None:
        """Write the rule; a reader sees the old file or the whole new one."""
        shown, folder = asdict(self), Path(path).absolute().parent
        del shown["stop"]
        # A judge's file as it is found from the rule's folder: both can be read from anywhere, and move together.
        beside = _moved(self.rule, lambda judge: os.path.relpath(judge, folder))
        head = {"foretell_rule": FORMAT, "stop": format_value(beside)}
        text = f'{{\n{_lines(head)},\n "certificate": {{\n{_lines(shown, indent=2)}\n }}\n}}\n'
        try:
            with replacing(Path(path)) as file:
                file.write(text.encode())
        except OSError as error:
            raise RequestError(f"cannot write {path}: {error.strerror}") from error

    def remarks(
        self, recipe: Recipe, layout: Layout, model_sha256: str | None = None, dtype: str | None = None
    ) -> tuple[str, ...]:
        """What someone has to know who decodes with this rule so; a model or dtype that is None is not compared."""
        if not self.certified:
            return (f"this rule never stops: {self.says}",)
        differs = [*self._model(model_sha256, dtype), *self._recipe(recipe), *self._layout(layout)]
        if not differs:
            return ()
        unknown_risk = "the certificate of this stopping rule does not hold here, so what it risks is unknown"
        return (f"{unknown_risk} (calibrate again): {'; '.join(differs)}",)

    def _model(self, model_sha256: str | None, dtype: str | None) -> Iterator[str]:
        if model_sha256 is not None and model_sha256 != self.model_sha256:
            yield f"the model is another one than {self.model} (sha256 {self.model_sha256[:12]}) was"
        if dtype is not None and self.dtype is not None and dtype != self.dtype:
            yield f"the model runs in {dtype}, not {self.dtype}"

    def _recipe(self, recipe: Recipe) -> Iterator[str]:
        mine = self.holds_for
        for name in (field.name for field in fields(Recipe) if field.name != "stop"):
            there, here = getattr(mine, name), getattr(recipe, name)
            if there != here:
                yield f"{name} is {_spelled(here)}, not {_spelled(there)}"

    def _layout(self, layout: Layout) -> Iterator[str]:
        if layout.length != self.window:
            yield f"the window has {layout.length} positions, not {self.window}"
        if layout.answer != (self.answer and tuple(self.answer)):
            yield f"the answer is {_region(layout.answer)}, not {_region(self.answer)}"
        if self.pins is not None and [*map(list, layout.pins)] != self.pins:
            yield "other tokens are pinned"


def read_certificate(path: str | PathLike[str]) -> Certificate:
    """The certificate in a file that `Certificate.save` wrote; an error that says what is wrong with any other."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf8"))
    except OSError as error:
        raise RequestError(f"cannot read the stopping rule {path}: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}") from error
    try:
        return _certificate(value, Path(path).parent)
    except ForetellError as error:
        raise RequestError(f"{path} holds no stopping rule that calibrate wrote: {error}") from error


def stop_of(given: object) -> Stop | Certificate:
    """A stopping rule however it is given: an object, its text, or the .json file of a certified one."""
    if isinstance(given, Certificate):
        return given
    if isinstance(given, PathLike) or (isinstance(given, str) and given.endswith(".json")):
        return read_certificate(given)
    if isinstance(given, str):
        try:
            rule: Stop = parse_value(Stop, given, "stop")
        except RecipeError as error:
            raise RecipeError(f"{error}{NOT_A_RULE}") from error
        return rule
    if not callable(given) or not hasattr(given, "reads"):
        kinds = "a rule, its text, or the file of a certified one"
        raise RequestError(f"stop must be {kinds}, got {given!r:.80}{NOT_A_RULE}")
    return cast("Stop", given)


def model_hash(folder: Path) -> str:
    """sha256 over config, tokenizer, chat template and weights, in the order of their names."""
    digest = hashlib.sha256()
    found = {path for pattern in MODEL_FILES for path in folder.glob(pattern)}
    names, config = folder / "special_tokens_map.json", folder / "tokenizer_config.json"
    if read_json(names).keys() - read_json(config).keys():  # what the config says too counts there alone
        found.add(names)
    for path in sorted(found):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _moved(rule: Stop, place: Callable[[str], str]) -> Stop:
    """The rule with the files of its judges elsewhere."""
    return changed(rule, lambda one: replace(one, path=place(one.path)) if isinstance(one, Judge) else one)


def _certificate(value: Any, folder: Path) -> Certificate:
    if not isinstance(value, Mapping) or "foretell_rule" not in value:
        raise RequestError('expected an object with "foretell_rule"')
    if value["foretell_rule"] != FORMAT:
        raise RequestError(f"its format is {value['foretell_rule']!r}; this release reads {FORMAT}")
    shown = value.get("certificate")
    if not isinstance(shown, Mapping):
        raise RequestError('"certificate" must be an object')
    given = {"stop": value.get("stop"), **shown}
    hints = get_type_hints(Certificate)
    for name in given:
        if name not in hints:
            raise RequestError(unknown("key", name, hints))
    for name, hint in hints.items():
        if name not in given:
            raise RequestError(f"{name!r} is missing")
        _check(name, given[name], hint)
    rule = _moved(parse_value(Stop, given["stop"], "stop"), lambda judge: str(folder / judge))
    read_files(rule)
    return Certificate(**(given | {"stop": format_value(rule)}))


def _check(name: str, value: Any, hint: Any) -> None:
    if hint in _WORDS:
        allowed: Any = (int, float) if hint is float else hint
        if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
            raise RequestError(f"{name!r} must be {_WORDS[hint]}, got {value!r:.60}")
    elif value is None:
        return
    elif name == "setting":
        _check(name, value, float)
    elif name in ("answer", "pins"):
        pairs = [value] if name == "answer" else value
        if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
            wanted = "a pair of whole numbers" if name == "answer" else "a list of pairs of whole numbers"
            raise RequestError(f"{name!r} must be {wanted} or null, got {value!r:.60}")
    else:
        _check(name, value, str)


def _lines(values: Mapping[str, Any], indent: int = 1) -> str:
    """An object's inside, one line a key."""
    written = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return ",\n".join(" " * indent + line for line in written)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value)


def _region(answer: Any) -> str:
    return "not laid out" if answer is None else f"{answer[1]} tokens at {answer[0]}"


def _spelled(value: object) -> str:
    try:
        return format_value(value)
    except ForetellError:  # a policy of one's own without a name
        return type(value).__name__

"""Checkpoint folders: finding them by path, bundled name or hub id, and reading the layouts that a folder describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any, get_type_hints

import msgspec
from tokenizers import Tokenizer
from tokenizers.models import BPE

from foretell.engine.codec import Codec
from foretell.engine.options import ANSWER, GenerateOptions, Options, make_template
from foretell.engine.request import LONGEST
from foretell.errors import ModelError, RequestError, StorageError, one_of, show, unknown, whole
from foretell.models.hub import download, is_hub_id
from foretell.models.load import BUNDLED
from foretell.recipes.presets import parse
from foretell.storage import convert, load_json

PLACEHOLDERS = {
    "prompt": ("input", "questions"),
    "question": ("name", "instructions", "options"),
    "named": ("name", "instructions", "options"),
    "option": ("label", "text"),
    "line": ("name", "slot"),
}  # of a decision template

NOT_THE_MODELS = {
    "recipe",
    "settings",
    "layout",
    "pins",
    "chat",
    "special_tokens",
    "seed",
    "stop",
    "on_mismatch",
    "stop_strings",
    "threshold",
    "entropy_bound",
}  # options that only a request may set


def folder_of(model: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a checkpoint: a path, the name of a bundled model, or a hub id, which is downloaded.

    A hub id is `owner/name` or `owner/name@revision`. A folder with this path has priority.
    """
    name, bundled = str(model), [path.parent.name for path in BUNDLED.glob("*/model.safetensors")]
    local = Path(model) if Path(model).exists() else BUNDLED / name if name in bundled else None
    if local is None and isinstance(model, str) and is_hub_id(name):
        return download(name, revision)
    if local is None:
        raise ModelError(
            f"there is no folder {name!r}; {unknown('bundled model', name, bundled)}; a model on the Hugging Face hub "
            f"is owner/name"
        )
    if revision is not None:
        raise RequestError(f"a revision is for models on the hub; {name} is a folder on this machine")
    return local


class DecisionTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wording of a question in the prompt, and the text that is pinned around its answer.

    The default is for models that follow instructions. Placeholders are {input}, {questions}, {name}, {instructions},
    {options}, {label}, {text} and {slot}.
    """

    prompt: str = "{input}\n\n{questions}"
    question: str = "{instructions}{options}"  # a question in the prompt, if it is the only one
    named: str = "{name}: {instructions}{options}"  # a question in the prompt, if there are several
    option: str = "\n{label}) {text}"  # each choice in {options}
    between: str = "\n\n"  # text between two questions
    scaffold: str = "The answer is {slot}"  # pinned around the slot; with several questions, {name} stands for a slot
    line: str = "{name}: {slot}"  # pinned around each of several slots, if the scaffold does not name them
    lines: str = "\n"  # text between two such lines
    labels: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # written before choices and levels
    numbered: bool = True  # whether choices are numbered if there are more of them than labels
    exact: bool = False  # whether labels are tokens of the vocabulary, and not texts to encode
    yes: tuple[str, ...] = ("yes", "Yes")  # spellings of yes, whose probabilities are added
    no: tuple[str, ...] = ("no", "No")
    think: int = 64  # masks before the scaffold
    trailing: int = 0  # masks after the scaffold
    orders: int | None = None  # 2: read choices in both orders; 1: once; None: in both if the first reading is unsure
    recipe: str = "full transfer=threshold(0.99) stop=prophet(tau=linear(5,5),reduce=min,over=masked,clock=tokens)"


class LayoutsFile(msgspec.Struct, forbid_unknown_fields=True):
    """The format of foretell.json."""

    default: str | None = None
    layouts: dict[str, dict[str, Any]] = {}
    decisions: dict[str, DecisionTemplate] = {}  # by the kind of question, or by a name of their own


def decision_templates(described: Mapping[str, Any]) -> dict[str, DecisionTemplate]:
    """Return the templates in a foretell.json that `layouts_of` has loaded."""
    return convert(described, LayoutsFile).decisions


def check_template(template: DecisionTemplate) -> None:
    """Raise RequestError if a template cannot be used."""
    whole("think", template.think, 0, LONGEST, RequestError)
    whole("trailing", template.trailing, 0, LONGEST, RequestError)
    if template.orders is not None:
        whole("orders", template.orders, 1, 2, RequestError)
    for name in ("prompt", "question", "named", "option", "line"):
        for _, field, _, _ in Formatter().parse(getattr(template, name)):
            if field is not None:
                one_of(f"placeholder in {name}", field, PLACEHOLDERS[name], RequestError)
    if not (template.labels and template.yes and template.no):
        raise RequestError("labels, yes and no must not be empty")
    parse(template.recipe)


def layouts_of(folder: Path) -> Mapping[str, Any]:
    """Load the folder's foretell.json: the windows, suffixes and answer regions that the model was trained for.

    Raises ModelError if a key or a value is not allowed in a layout.
    """
    path = folder / "foretell.json"
    if not path.exists():
        return {}
    hints = get_type_hints(GenerateOptions)
    known = [(name, hint, None) for name, hint in hints.items() if name not in NOT_THE_MODELS]
    options = msgspec.defstruct("LayoutOptions", known)
    described: Mapping[str, Any] = load_json(path, "layouts", ModelError)
    where = str(path)
    without_text = Codec(folder, Tokenizer(BPE()), vocab_size=0, mask_id=None, end_ids=())
    try:
        file = convert(described, LayoutsFile)
        if file.default is not None:
            one_of("layout", file.default, file.layouts)
        for name, template in file.decisions.items():
            where = f"{path}, decisions {show(name)}"
            check_template(template)
        for name, layout in file.layouts.items():
            where = f"{path}, layout {show(name)}"
            convert(layout, options)
            wordless = {"answer_length": ANSWER} | layout | {"suffix": None} if layout.get("suffix") else layout
            make_template(Options.of(wordless), without_text, {})  # checks numbers and names
    except (StorageError, RequestError) as error:
        raise ModelError(f"{where}: {error}") from error
    return described

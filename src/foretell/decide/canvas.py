"""From questions to a canvas: the prompt, masks to think in, a pinned scaffold and one slot per question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from foretell.decide.grammar import Grammar, find_grammar
from foretell.decide.labels import Labels, encode_after, encode_before, find_labels
from foretell.decide.objects import Leaf, Object
from foretell.decide.questions import Choice, Integer, OneSlot, Predicate, Score, Text
from foretell.engine.codec import Codec
from foretell.engine.folder import DecisionTemplate
from foretell.engine.request import Layout
from foretell.errors import RequestError
from foretell.loop.slots import Slot

Spec = Labels | Grammar
Asked = OneSlot | Object


@dataclass(frozen=True, slots=True)
class Canvas:
    """The layout of some questions, and what each slot may hold."""

    layout: Layout
    specs: Mapping[str, Spec]  # by question, or by path of a field, in the order of the slots


def write_prompt(text: str, questions: Mapping[str, Asked], template: DecisionTemplate, *, reverse: bool) -> str:
    """Return the prompt that asks `questions` about `text`; `reverse` lists choices in the opposite order."""
    form = template.question if len(questions) == 1 else template.named
    written = [
        form.format(name=name, instructions=one.instructions, options=_options(one, template, reverse=reverse))
        for name, one in questions.items()
    ]
    return template.prompt.format(input=text, questions=template.between.join(written)).strip()


def _options(question: Asked, template: DecisionTemplate, *, reverse: bool) -> str:
    if isinstance(question, Object):
        return "".join(
            f"\n{path}: {leaf.instructions}" for path, leaf in question.leaves("").items() if leaf.instructions
        )
    listed = list_choices(question, template, reverse=reverse)
    texts = [template.option.format(label=label, text=text) for label, text in listed]
    return "".join(texts)


def list_choices(question: Asked, template: DecisionTemplate, *, reverse: bool = False) -> list[tuple[str, str]]:
    """Return the letter and the text of each choice or level, as the prompt lists them."""
    if isinstance(question, Choice) and question.read == "letters":
        pairs = zip(question.choices, question.descriptions, strict=True)
        texts = [_value_text(value) + (f": {about}" if about else "") for value, about in pairs]
    elif isinstance(question, Score):
        texts = list(question.levels)
    else:
        return []
    if len(texts) <= len(template.labels):
        labels = list(template.labels[: len(texts)])
    elif template.numbered:
        labels = [str(number) for number in range(1, len(texts) + 1)]
    else:
        raise RequestError(
            f"this model's template has the labels {', '.join(template.labels)}, too few for {len(texts)} choices"
        )
    return list(zip(labels, texts[::-1] if reverse else texts, strict=True))


def _value_text(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def lay_out_canvas(
    questions: Mapping[str, Asked],
    answered: Mapping[str, str],
    template: DecisionTemplate,
    codec: Codec,
    think: int,
    *,
    reverse: bool = False,
) -> Canvas:
    """Return the layout in which `questions` have slots; the texts of questions `answered` before are pinned."""
    pins: dict[int, int] = {}
    slots, specs, at = [], dict[str, Spec](), think
    for before, name, question in _leaf_pieces(template, questions, answered):
        pinned = encode_before(before, codec) if name is not None else codec.encode(before) if before else []
        if name is not None and question is None:
            pinned += encode_after(before, answered[name], codec)
        pins |= {at + place: token for place, token in enumerate(pinned)}
        at += len(pinned)
        if name is not None and question is not None:
            try:
                specs[name] = make_spec(question, before, template, codec, reverse=reverse)
            except RequestError as error:
                raise type(error)(f"{name}: {error}") from error
            slots.append(Slot(at, specs[name].length, specs[name].automaton))
            at += specs[name].length
    return Canvas(Layout(at + template.trailing, tuple(pins.items()), slots=tuple(slots)), specs)


def make_spec(
    question: OneSlot | Leaf, before: str, template: DecisionTemplate, codec: Codec, *, reverse: bool = False
) -> Spec:
    """Return what the slot of a question may hold, after the text `before`."""
    if isinstance(question, Leaf) and question.values:
        texts = [(value, (json.dumps(value, ensure_ascii=False),)) for value in question.values]
        return find_labels(texts, before, codec)
    if isinstance(question, Leaf | Text):
        return find_grammar(question.regex, question.tokens, codec)
    spelled = spell_labels(question, template, reverse=reverse)
    return find_labels(spelled, None if template.exact else before, codec)


def _leaf_pieces(
    template: DecisionTemplate, questions: Mapping[str, Asked], answered: Mapping[str, str]
) -> Iterator[tuple[str, str | None, OneSlot | Leaf | None]]:
    """Yield pinned texts with the slot after each; objects have a slot per field, and answered questions none."""
    carried = ""
    for text, name in _pieces(template, [*answered, *questions]):
        before = carried + text
        carried = ""
        one = None if name is None else questions.get(name)
        if not isinstance(one, Object):
            yield before, name, one
            continue
        assert name is not None, "an object has a name"
        leaves = one.leaves(name)
        for part, leaf in one.write(name):
            if leaf is None:
                carried = part
            else:
                yield before + part, leaf, leaves[leaf]
                before = ""
    yield carried, None, None


def _pieces(template: DecisionTemplate, names: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the pinned text before each slot with the name of its question, and what comes after the last one."""
    scaffold = template.scaffold
    fields = [field for _, field, _, _ in Formatter().parse(scaffold) if field is not None]
    if len(names) == 1 and fields == ["slot"]:
        fields = list(names)
    elif set(fields) != set(names):
        lines = (template.line.replace("{name}", name.replace("{", "{{").replace("}", "}}")) for name in names)
        scaffold, fields = template.lines.join(lines), list(names)
    if len(fields) != len(set(fields)):
        raise RequestError(f"the scaffold {scaffold!r} has two slots for one question")
    texts = [text for text, *_ in Formatter().parse(scaffold)]
    places = [field for _, field, _, _ in Formatter().parse(scaffold)]
    names_left = iter(fields)
    for text, place in zip(texts, places, strict=True):
        yield text, None if place is None else next(names_left)


def spell_labels(
    question: OneSlot, template: DecisionTemplate, *, reverse: bool = False
) -> list[tuple[Any, Sequence[str]]]:
    """Return the values of an answer, each with the texts that mean it."""
    if isinstance(question, Predicate):
        return [(True, template.yes), (False, template.no)]
    if isinstance(question, Integer):
        return [(number, (str(number),)) for number in range(10**question.digits)]
    if isinstance(question, Choice) and question.read == "words":
        return [(value, (_value_text(value),)) for value in question.choices]
    assert isinstance(question, Choice | Score), "a text has no labels"
    values: Sequence[Any] = question.choices if isinstance(question, Choice) else range(len(question.levels))
    letters = [(letter,) for letter, _ in list_choices(question, template)]
    return list(zip(values, letters[::-1] if reverse else letters, strict=True))

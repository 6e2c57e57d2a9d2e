"""From questions to a canvas: the prompt, masks to think in, a pinned scaffold and one slot per question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from foretell.decide.labels import Labels, encode_after, encode_before
from foretell.decide.questions import Choice, Integer, Predicate, Question, Score
from foretell.engine.codec import Codec
from foretell.engine.folder import DecisionTemplate
from foretell.engine.request import Layout
from foretell.errors import RequestError
from foretell.loop.slots import Slot


@dataclass(frozen=True, slots=True)
class Canvas:
    """The layout of some questions, and what each slot may hold."""

    layout: Layout
    labels: Mapping[str, Labels]  # by question, in the order of the slots


def write_prompt(text: str, questions: Mapping[str, Question], template: DecisionTemplate, *, reverse: bool) -> str:
    """Return the prompt that asks `questions` about `text`; `reverse` lists choices in the opposite order."""
    form = template.question if len(questions) == 1 else template.named
    written = [
        form.format(name=name, instructions=one.instructions, options=_options(one, template, reverse=reverse))
        for name, one in questions.items()
    ]
    return template.prompt.format(input=text, questions=template.between.join(written)).strip()


def _options(question: Question, template: DecisionTemplate, *, reverse: bool) -> str:
    listed = list_choices(question, template, reverse=reverse)
    texts = [template.option.format(label=label, text=text) for label, text in listed]
    return "".join(texts)


def list_choices(question: Question, template: DecisionTemplate, *, reverse: bool = False) -> list[tuple[str, str]]:
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
    questions: Mapping[str, Question],
    answered: Mapping[str, str],
    template: DecisionTemplate,
    codec: Codec,
    think: int,
    *,
    reverse: bool = False,
) -> Canvas:
    """Return the layout in which `questions` are open; the texts of those `answered` before are pinned."""
    pins: dict[int, int] = {}
    slots, labels, at = [], dict[str, Labels](), think
    for before, name in _pieces(template, [*answered, *questions]):
        pinned = encode_before(before, codec) if name is not None else codec.encode(before)
        if name is not None and name in answered:
            pinned += encode_after(before, answered[name], codec)
        pins |= {at + place: token for place, token in enumerate(pinned)}
        at += len(pinned)
        if name is not None and name not in answered:
            spelled = spell_labels(questions[name], template, reverse=reverse)
            labels[name] = Labels.of(spelled, None if template.exact else before, codec)
            slots.append(Slot(at, labels[name].length, labels[name].automaton))
            at += labels[name].length
    return Canvas(Layout(at + template.trailing, tuple(pins.items()), slots=tuple(slots)), labels)


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
    question: Question, template: DecisionTemplate, *, reverse: bool = False
) -> Mapping[object, Sequence[str]]:
    """Return the texts that mean each value of an answer."""
    if isinstance(question, Predicate):
        return {True: template.yes, False: template.no}
    if isinstance(question, Integer):
        return {number: (str(number),) for number in range(10**question.digits)}
    if isinstance(question, Choice) and question.read == "words":
        return {value: (_value_text(value),) for value in question.choices}
    if isinstance(question, Score):
        values: Sequence[object] = range(len(question.levels))
    elif isinstance(question, Choice):
        values = question.choices
    else:
        raise RequestError(f"a {question.kind} has no labels")
    letters = [letter for letter, _ in list_choices(question, template)]
    return dict(zip(values, ((letter,) for letter in (reversed(letters) if reverse else letters)), strict=True))

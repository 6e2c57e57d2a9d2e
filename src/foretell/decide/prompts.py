"""Decisions as prompts, so that they can be evaluated and tuned like texts with masks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from foretell.decide.canvas import Asked, Canvas, lay_out_canvas, write_prompt
from foretell.decide.labels import Labels
from foretell.decide.wire import parse_questions
from foretell.engine.codec import Codec
from foretell.engine.completion import Completion
from foretell.engine.folder import DecisionTemplate, decision_templates, layouts_of
from foretell.engine.masked_text import MaskedText
from foretell.engine.request import Layout
from foretell.errors import RequestError, unknown
from foretell.loop.spelling import Spelling


@dataclass(frozen=True, slots=True)
class DecisionPrompt(MaskedText):
    """An input and questions about it. Its masks are the room to think and the slots.

    All questions are asked at once, and choices are read in the given order only.
    """

    questions: str = "{}"  # as JSON
    template: str | None = None  # name of one of the model's templates

    def encode(self, codec: Codec, context: int) -> tuple[list[int], Layout]:  # noqa: ARG002  the engine checks it
        asked, template, canvas = self.prepare(codec)
        if isinstance(self.text, str):
            return codec.prompt(write_prompt(self.text, asked, template, reverse=False)), canvas.layout
        question = {"role": "user", "content": write_prompt("", asked, template, reverse=False)}
        return codec.prompt([*self.text, question]), canvas.layout

    def finish(self, done: Completion, layout: Layout, codec: Codec, spelling: Spelling) -> Completion:  # noqa: ARG002
        """Return the completion with the texts of all slots, as JSON."""
        _, _, canvas = self.prepare(codec)
        texts = {}
        for (name, spec), slot in zip(canvas.specs.items(), layout.slots, strict=True):
            held = tuple(done.tokens[slot.offset : slot.end])
            texts[name] = spec.text_of(held) if isinstance(spec, Labels) else spec.decode(held, codec)
        answer = json.dumps(texts, ensure_ascii=False)
        slotted = [at for slot in layout.slots for at in range(slot.offset, slot.end)]
        return replace(
            done,
            text=answer,
            answer=answer,
            fills=tuple(texts.values()),
            response_tokens=len(slotted),
            generated=tuple(done.tokens[at] for at in slotted),
        )

    def join(self, tokens: Sequence[int], layout: Layout, codec: Codec, spelling: Spelling) -> str:  # noqa: ARG002
        return codec.decode(tokens)

    def prepare(self, codec: Codec) -> tuple[Mapping[str, Asked], DecisionTemplate, Canvas]:
        """Return the questions, the template of the model's folder, and the canvas."""
        asked = parse_questions(json.loads(self.questions))
        template = find_template(_templates(codec.folder), asked, self.template)
        return asked, template, lay_out_canvas(asked, {}, template, codec, template.think)


@lru_cache(maxsize=16)
def _templates(folder: Path) -> Mapping[str, DecisionTemplate]:
    return decision_templates(layouts_of(folder))


def find_template(
    known: Mapping[str, DecisionTemplate], questions: Mapping[str, Asked], given: str | None
) -> DecisionTemplate:
    """Return a model's template by its name, or its one for these questions, or the default one."""
    if given is not None:
        if given not in known:
            raise RequestError(unknown("template", given, known))
        return known[given]
    kinds = [one.kind for one in questions.values()]
    names = kinds if len(kinds) == 1 else []
    return next((known[name] for name in (*names, "default") if name in known), DecisionTemplate())


def digest(questions: Mapping[str, Asked], template: DecisionTemplate, think: int) -> str:
    """Return a sha256 of everything that determines how questions are asked."""
    return sha256(repr([sorted(questions.items()), template, think]).encode()).hexdigest()

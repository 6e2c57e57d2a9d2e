"""A store that decodes nothing: recipes have planted risks and costs, so that a search can be checked against them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from foretell.certify.decode_store import DecodeStore
from foretell.certify.decodings import evaluation_for
from foretell.engine.trace import Trace
from foretell.evaluation.benchmark import Example
from foretell.evaluation.records import Record
from foretell.evaluation.run import PreparedEvaluation
from foretell.recipes.presets import parse
from foretell.recipes.recipe import Recipe

STEPS = 64  # of full decoding
OPEN: dict[str, Any] = {"max_new_tokens": 12, "block_length": 6}  # a window without an answer region
ANSWERED: dict[str, Any] = {**OPEN, "suffix": "The answer is", "answer_length": 2}


def prompts(count: int) -> list[str]:
    """Return distinct prompts that the bundled tokenizer can read."""
    names = ("Tom", "Ann", "Adam", "He")
    return [f"{names[n % 4]} has {2 + n // 4 % 18} boxes with {2 + n // 72} apples each." for n in range(count)]


def prepare_bench(
    model: Path,
    folder: Path,
    given: int | Sequence[Any],
    options: dict[str, Any] = OPEN,
    against: str = "full",
    **more: Any,
) -> PreparedEvaluation:
    """Prepare prompts, or so many of those above."""
    asked = prompts(given) if isinstance(given, int) else given
    what = evaluation_for(str(model), None, asked, against, None, folder, options, **more)
    return PreparedEvaluation.prepare(what)


def draw(*parts: object) -> float:
    """Return a number in [0, 1) that depends only on `parts`."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=7).digest()) / 2**56


def is_full(recipe: Recipe) -> bool:
    return not recipe.transfer.parallel


@dataclass(frozen=True, slots=True)
class PlantedStore(DecodeStore):
    """An answer changes if the example's own number is below the recipe's risk, so losses are nested."""

    risk: Callable[[Recipe], float] = lambda _: 0.0
    cost: Callable[[Recipe], int] = lambda _: 8
    trace: Trace | None = None
    always: Collection[str] = ()  # ids of examples that every fast recipe changes
    salt: object = 0  # another one is another draw of the whole population
    asked: list[tuple[str, str, list[str]]] = field(default_factory=list)  # title, recipe and examples of every call

    def records(self, recipe: str, examples: Sequence[Example], title: str = "") -> list[Record]:
        self.asked.append((title, recipe, [one.id for one in examples]))
        made = parse(self.resolve(recipe))
        risk, steps = (0.0, STEPS) if is_full(made) else (self.risk(made), self.cost(made))
        fast = not is_full(made)
        return [
            self._record(recipe, one.id, draw(self.salt, one.id) < risk or (fast and one.id in self.always), steps)
            for one in examples
        ]

    def cases(self, recipe: str, examples: Sequence[Example], title: str = "") -> Any:
        return [
            SimpleNamespace(example=example, record=record, trace=self.trace)
            for example, record in zip(examples, self.records(recipe, examples, title), strict=True)
        ]

    @staticmethod
    def _record(recipe: str, name: str, changed: bool, steps: int) -> Record:
        said = "changed" if changed else "right"
        return Record(
            recipe, name, said, said, "right", not changed, steps, STEPS, steps, 12 * steps, 3, None, None, "complete",
            0.0, steps / 1000, tokens=(1, 2, 4 if changed else 3),
        )  # fmt: skip

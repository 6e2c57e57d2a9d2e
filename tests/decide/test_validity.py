"""Random closed schemas and regular expressions: every output parses and validates."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from foretell.decide.objects import Object
from foretell.decide.questions import Text
from foretell.engine.engine import Engine, load
from foretell.engine.folder import DecisionTemplate
from foretell.errors import RequestError
from tests.decide.models import make_engine

RECIPES = ("full steps=1", "full", "full transfer=threshold(0.3)", "full block_length=3", DecisionTemplate().recipe)
PLAIN = DecisionTemplate(prompt="{input}", scaffold="{slot}", think=4)


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return an object schema whose shape is closed."""
    names = rng.sample(["a", "b", "c d", 'q"', "é"], rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: random_field(rng, depth) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def random_field(rng: random.Random, depth: int) -> dict[str, Any]:
    if depth < 1 and rng.random() < 0.2:
        return random_schema(rng, depth + 1)
    return random_value(rng)


def random_value(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    low = rng.randint(-5, 5)
    made: list[Callable[[], dict[str, Any]]] = [
        lambda: {"enum": rng.sample(["red", "re", 'a"b', 1, True, None, 12, 1.5, ["x"]], rng.randint(1, 4))},
        lambda: {"const": rng.choice(["x y", 3, False])},
        lambda: {"type": "boolean"},
        lambda: {"type": "null"},
        lambda: {"type": "integer"},
        lambda: {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 120)},
        lambda: {"type": "number"},
        lambda: {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 6)},
        lambda: {"type": "string"},
    ]
    if depth == 0:
        made += [
            lambda: {"type": "string", "pattern": random_regex(rng)},
            lambda: {
                "type": "array",
                "items": random_value(rng, 1),
                "minItems": rng.randint(0, 2),
                "maxItems": rng.randint(2, 3),
            },
            lambda: {"anyOf": [random_value(rng, 1), random_value(rng, 1)]},
        ]
    return rng.choice(made)()


def random_regex(
    rng: random.Random, depth: int = 0, atoms: tuple[str, ...] = ("a", "ab", "[0-9]", "é", "[a-c]", '"')
) -> str:
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(atoms)
    inner = random_regex(rng, depth + 1, atoms)
    other = random_regex(rng, depth + 1, atoms)
    return rng.choice(
        [
            f"({inner}|{other})",
            f"({inner}){other}",
            f"({inner}){{1,2}}{other}",
            f"({inner})?{other}",
            f"({inner})*{other}",
        ]
    )


def check_schema(engine: Engine, rng: random.Random) -> None:
    schema = random_schema(rng)
    decision = engine.decide("x", Object.from_schema(schema, tokens=24), template=PLAIN, recipe=rng.choice(RECIPES))
    value = json.loads(json.dumps(decision.value))
    jsonschema.validate(value, schema)
    assert list(value) == list(schema["properties"])


def check_regex(engine: Engine, rng: random.Random, atoms: tuple[str, ...] | None = None) -> bool:
    regex = random_regex(rng) if atoms is None else random_regex(rng, 0, atoms)
    try:
        asked = engine.decide("Tom", Text("", regex, tokens=8), template=PLAIN, recipe=rng.choice(RECIPES))
    except RequestError as error:  # the bundled vocabulary cannot spell every part, or eight tokens are too few
        if not re.search("allow more tokens|cannot spell", str(error)):
            raise
        return False
    assert re.fullmatch(regex, asked.value), (regex, asked.value)
    return True


def run_cases(count: int, seed: int) -> int:
    rng = random.Random(seed)
    engines = [make_engine(one) for one in range(2 if count < 100 else 8)]
    tiny, served = load("tiny"), 0
    for _ in range(count // 2):
        check_schema(rng.choice(engines), rng)
        if rng.random() < 0.5:
            served += check_regex(rng.choice(engines), rng)
        else:
            served += check_regex(tiny, rng, ("Tom", "[0-9]", "( apples)", "A|B", "( Tom| Ann)", "[0-9]{2}"))
    return served


def test_every_output_is_valid() -> None:
    assert run_cases(10, seed=0) > 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_thousand_outputs_are_valid() -> None:
    assert run_cases(2000, seed=1) > 600

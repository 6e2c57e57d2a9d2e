"""What can be loaded: the bundled models and the families of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from foretell.models import huggingface
from foretell.models.hub import MASKED_LM
from foretell.models.load import BUNDLED, FAMILIES

ABOUT = {
    "tiny": "LLaDA's format; solves four kinds of generated problems and knows 119 words",
    "tiny-sdtt": "tiny, distilled to need half the steps",
}


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model that is part of the package."""

    name: str
    about: str
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FamilyInfo:
    """A format of checkpoints that can be loaded."""

    name: str
    models: str
    checked: str


def bundled_models() -> list[BundledModel]:
    """Return the models that are part of the package, sorted by name."""
    from safetensors import safe_open  # noqa: PLC0415

    found = []
    for file in sorted(BUNDLED.glob("*/model.safetensors")):
        with safe_open(file, "numpy") as tensors:
            size = sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        found.append(BundledModel(file.parent.name, ABOUT[file.parent.name], size, file.stat().st_size))
    return found


def families() -> list[FamilyInfo]:
    """Return the supported families, and what their results were compared with."""
    known = [FamilyInfo(one.name, one.models, one.checked) for one in FAMILIES.values()]
    return [*known, FamilyInfo(MASKED_LM, huggingface.MODELS, huggingface.CHECKED)]

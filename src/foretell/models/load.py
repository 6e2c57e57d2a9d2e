"""Load a denoiser from a checkpoint folder: only safetensors, memory-mapped, without running the folder's code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from foretell.errors import ModelError, show, unknown
from foretell.loop.protocols import Denoiser
from foretell.models.device import AUTO, choose_device, choose_dtype, parse_dtype
from foretell.models.dream import DREAM
from foretell.models.family import Family, Settings
from foretell.models.llada import LLADA
from foretell.models.memory import COLUMNS, Footprint, row_values
from foretell.models.transformer import Transformer, TransformerConfig
from foretell.models.weights import SkipInitialisation, Weights

BUNDLED = Path(__file__).parents[1] / "checkpoints"  # one folder per bundled model
FAMILIES: dict[str, Family] = {family.name: family for family in (LLADA, DREAM)}

Progress = Callable[[int, int], None]  # called with the bytes that are loaded and with all bytes


def load_model(
    folder: Path | str,
    device: torch.device | str = AUTO,
    dtype: torch.dtype | str | None = AUTO,
    *,
    quantize: str | None = None,
    progress: Progress | None = None,
) -> Denoiser:
    """Load the denoiser in `folder`.

    The weights are memory-mapped, and not copied on a CPU if their dtype stays the same. `choose_device` and
    `choose_dtype` say what "auto" is. Raises ModelError if the weights, after they are rounded by `quantize`, do not
    fit into memory.
    """
    target, kind = choose_device(device), parse_dtype(dtype)
    settings = Settings.read(Path(folder))
    family = family_of(settings)
    if family is None:
        from foretell.models.huggingface import load_masked_lm  # noqa: PLC0415  transformers is optional

        return load_masked_lm(settings, target, kind)
    return family.wrap(_load_network(family, settings, target, kind, quantize, progress))


def family_of(settings: Settings) -> Family | None:
    """Return the family of a config.json; None for a Hugging Face masked LM."""
    name = settings.values.get("model_type")
    architectures = settings.values.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(one, str) for one in architectures):
        raise settings.problem("architectures", "a list of names")
    if isinstance(name, str) and name.lower() in FAMILIES:
        return FAMILIES[name.lower()]
    if any(architecture.endswith("ForMaskedLM") for architecture in architectures):
        return None
    if not isinstance(name, str):
        raise settings.problem("model_type", f"one of {', '.join(sorted(FAMILIES))}")
    raise ModelError(
        f"{settings.file}: {unknown('model_type', name, FAMILIES)}; "
        f"architectures are {show(architectures)}, and only those that end in ForMaskedLM can run without a known "
        "model_type"
    )


def _load_network(
    family: Family,
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype | None,
    quantize: str | None,
    progress: Progress | None,
) -> Transformer:
    config = family.configure(settings)
    weights = Weights.locate(settings.file.parent)
    config = _fit_head(config, family, settings, weights)
    with torch.device("meta"), SkipInitialisation():
        model = Transformer(config)
    names = {ours: family.checkpoint_name(ours) for ours, _ in model.named_parameters()}
    # A tied head is listed once, as the embedding; some checkpoints store it twice.
    spare = (*family.ignored, family.checkpoint_name("head.weight")) if config.tied else family.ignored
    weights.refuse_unexpected(set(names.values()), spare)
    # The network computes in a single dtype: by default, the embedding's decides.
    stored, size = weights.dtype(family.checkpoint_name("embed.weight")), _count(model)
    kind = dtype or choose_dtype(device, stored, size)
    for ours, theirs in names.items():  # all of them before memory is used for one
        weights.check(theirs, tuple(model.get_parameter(ours).shape))
    row = row_values(config, min(config.context, COLUMNS))
    Footprint(str(settings.file.parent), size, _count(model.blocks), row, stored).check(device, kind, quantize)
    state, done = {}, 0
    for ours, theirs in names.items():
        state[ours] = weights.read(theirs).to(device, kind)
        done += state[ours].nbytes
        if progress is not None:
            progress(done, size * kind.itemsize)
    model.load_state_dict(state, strict=False, assign=True)
    if config.tied:
        model.head.weight = model.embed.weight
    return model.requires_grad_(False).eval()


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _fit_head(config: TransformerConfig, family: Family, settings: Settings, weights: Weights) -> TransformerConfig:
    """Return the config with the stored head's number of outputs, if it ends at the vocabulary or before the mask."""
    embedded = weights.rows(family.checkpoint_name("embed.weight"))
    if embedded <= config.mask_id == config.vocab_size - 1:
        raise settings.problem("mask_token_id", f"a token id from 0 to {config.mask_id - 1}")
    if config.tied:
        return config
    outputs = weights.rows(family.checkpoint_name("head.weight"))
    shorter = outputs < config.vocab_size and outputs in (config.mask_id, settings.count("vocab_size"))
    return replace(config, outputs=outputs) if shorter else config

"""Any Hugging Face masked LM (BERT, RoBERTa, ALBERT, ModernBERT, ...) as a denoiser without a cache."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretell.errors import ModelError, RequestError, show
from foretell.extras import require_extra
from foretell.loop.parts import KVStore
from foretell.loop.protocols import Inputs
from foretell.loop.wrappers import with_all_columns
from foretell.models.device import choose_dtype
from foretell.models.family import DEEPEST, LARGEST, Settings, read_json
from foretell.models.memory import Footprint
from foretell.models.quiet import no_progress_bars, quiet_libraries
from foretell.models.tokenizer import has_tokenizer, mask_of, read_tokenizer
from foretell.models.transformer import UNBOUNDED
from foretell.models.weights import SkipInitialisation, Weights

_FIXED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False, None),  # it would see only the left side
    "transformers_weights": (None,),  # another file, anywhere
    "attn_implementation": (None, "eager", "sdpa"),  # other names may be code on the Hugging Face hub
    "_attn_implementation": (None, "eager", "sdpa"),
}
_COUNTS = re.compile("(^|_)(n|num)_|layer|group|block")  # keys that say how many modules there are
MODELS = "BERT, RoBERTa, ALBERT, ModernBERT, DistilBERT, ELECTRA, and most others (extra hf)"
CHECKED = "the logits equal those of transformers, with random weights; two published antibody models were run"
WINDOW = 256  # the default of max_new_tokens in the engine's options


@dataclass(frozen=True, slots=True)
class MaskedLM:
    """Implements `protocols.Denoiser` around a transformers model with a masked LM head.

    Rows are rotated so that their padding follows the text, because some of these models count positions from
    column 0 regardless of the attention mask.
    """

    network: Any  # a transformers PreTrainedModel whose class ends in ForMaskedLM
    mask_id: int
    offset: int = 0  # the position id of a text's first token
    context: int = UNBOUNDED  # the number of tokens that have a position id

    def __call__(self, inputs: Inputs) -> States | Table:
        asked, prompt = inputs.columns.gather(1, inputs.wanted), inputs.prompt  # [b, w]
        inputs = with_all_columns(inputs)
        places, length = inputs.positions, inputs.canvas.shape[1]
        if length > self.context:
            raise RequestError(too_long(prompt, length, self.context))
        padding = length - 1 - places[:, -1:]  # [b, 1] columns before each text
        turn = (inputs.columns + padding) % length
        arguments = {
            "input_ids": inputs.canvas.gather(1, turn),
            "attention_mask": inputs.attend.gather(1, turn).long(),
        }
        if "position_ids" in inspect.signature(self.network.base_model.forward).parameters:
            arguments["position_ids"] = inputs.columns + self.offset
        return self._run(arguments, (asked - padding) % length)

    def _run(self, arguments: dict[str, Tensor], asked: Tensor) -> States | Table:
        rows = torch.arange(len(asked), device=asked.device)[:, None]
        head = _find_head(self.network)
        with torch.no_grad():
            if head is None:
                return Table(self.network(**arguments).logits[rows, asked])
            return States(self.network.base_model(**arguments)[0][rows, asked], head)

    def new_cache(self, batch: int, length: int) -> KVStore:
        raise ModelError(
            f"{type(self.network).__name__} has no cache (requested: {batch} rows of {length} columns): "
            f"decode it with cache=off"
        )


def _position_range(network: Any) -> tuple[int, int]:
    """Return the position id of a text's first token, and the number of tokens that have one."""
    size = getattr(network.config, "max_position_embeddings", None)
    offset = 0
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and related models reserve a row for padding and count from the next row.
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            size = module.num_embeddings
    return offset, (size or UNBOUNDED) - offset


def too_long(prompt: int, length: int, limit: int) -> str:
    """Return the message for a canvas of `length` columns, `prompt` of them before the window."""
    parts = f"{prompt} of the prompt with its padding and {length - prompt} of the window"
    problem = f"the text has {length} tokens ({parts}); this model supports at most {limit}"
    if prompt >= limit:
        return f"{problem}: the prompt alone is too long"
    return (
        f"{problem}: ask for a window of at most {limit - prompt} with max_new_tokens (--max-new-tokens), which is "
        f"{WINDOW} by default"
    )


@dataclass(frozen=True, slots=True)
class States:
    """Implements `protocols.Readout`: the last layer's states, and the head that reads them."""

    states: Tensor  # [b, w, dim]
    head: Callable[[Tensor], Tensor]

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        with torch.no_grad():
            return self.head(self.states[row, at])


@dataclass(frozen=True, slots=True)
class Table:
    """Implements `protocols.Readout` for models whose head cannot be called separately."""

    logits: Tensor  # [b, w, V]

    def __call__(self, row: Tensor, at: Tensor) -> Tensor:
        return self.logits[row, at]


def _find_head(network: Any) -> Callable[[Tensor], Tensor] | None:
    """Return the head after `base_model` if its structure is known, so that it runs only where it is read."""
    if hasattr(network, "head") and hasattr(network, "decoder"):  # ModernBERT
        return lambda states: network.decoder(network.head(states))
    for name in ("cls", "lm_head", "predictions"):  # BERT, RoBERTa, ALBERT
        if isinstance(part := getattr(network, name, None), nn.Module):
            return part
    return None


def load_masked_lm(settings: Settings, device: torch.device, dtype: torch.dtype | None) -> MaskedLM:
    """Load the masked LM in the folder of `settings`: only local files, safetensors, and transformers' own code."""
    folder = settings.file.parent
    require_extra("hf")
    weights = Weights.locate(folder)
    mask_id = _mask_id(settings)
    _check_values("", settings.values, settings)
    for key, allowed in _FIXED.items():
        settings.require(key, *allowed)
    read_json(folder / "generation_config.json")  # transformers would wait for a pipe
    if (folder / "adapter_config.json").exists():
        raise ModelError(f"{folder / 'adapter_config.json'}: adapters are not supported; merge it into the model")
    sizes = weights.sizes()
    stored = weights.dtype(max(sizes, key=sizes.__getitem__)) if sizes else torch.float32
    dtype = dtype or choose_dtype(device, stored, sum(sizes.values()))
    Footprint(str(folder), sum(sizes.values()), stored=stored).check(device, dtype)
    with quiet_libraries():
        network, report = _read_network(folder, dtype, weights)
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills these with random numbers.
        raise ModelError(
            f"{folder}: tensor {', '.join(missing[:5])} is missing; is this a model with a masked LM head?"
        )
    if network.dtype == torch.float16 and device.type == "cpu" and dtype is None:
        network = network.float()
    model = MaskedLM(network.to(device).requires_grad_(False).eval(), mask_id, *_position_range(network))
    _try(model, settings, device)
    return model


def _check_values(key: str, value: Any, settings: Settings) -> None:
    """Raise ModelError for numbers, at any depth of config.json, with which transformers would build forever."""
    if isinstance(value, Mapping):
        for name, inside in value.items():
            _check_values(str(name), inside, settings)
    elif isinstance(value, list):
        for inside in value:
            _check_values(key, inside, settings)
    elif isinstance(value, float) and not isfinite(value):
        raise ModelError(f"{settings.file}: {key!r} is {value}; it must be a finite number")
    elif isinstance(value, int):
        most = DEEPEST if _COUNTS.search(key) else LARGEST
        if abs(value) > most:
            raise ModelError(f"{settings.file}: {key!r} is {show(value)}; it must be at most {most}")


def _try(model: MaskedLM, settings: Settings, device: torch.device) -> None:
    """Run the model on a single mask. Raises ModelError if it cannot run, or reads fewer tokens than it says."""
    vocab_size, rows = settings.count("vocab_size"), model.network.get_input_embeddings().num_embeddings
    if rows < vocab_size:
        raise settings.problem("vocab_size", f"at most {rows}, the rows of the embedding")
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    inputs = Inputs(one + model.mask_id, one, one == 0, one, one, None, 0)
    try:
        model(inputs)(one[0], one[0])
    except Exception as problem:  # whatever the settings in config.json lead to
        raise ModelError(f"{settings.file}: transformers cannot run this model: {problem!s:.300}") from problem


def _read_network(folder: Path, dtype: torch.dtype | None, weights: Weights) -> tuple[Any, dict[str, Any]]:
    """Load the transformers model in `folder`, with transformers' report about its tensors."""
    try:
        from transformers import AutoConfig, AutoModelForMaskedLM  # noqa: PLC0415  an extra, and slow to import

        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"), SkipInitialisation():
            described = AutoModelForMaskedLM.from_config(config, trust_remote_code=False)
        # transformers would use memory for tensors that are missing, before it reports them.
        sizes = [sum(weight.numel() for weight in described.parameters()), weights.size()]
        if sizes[0] > 2 * sizes[1] + LARGEST:
            raise ModelError("it describes {:,} parameters, and the weights have {:,}".format(*sizes))
        with no_progress_bars():
            network, report = AutoModelForMaskedLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as problem:  # transformers raises nearly any type for a bad folder
        raise ModelError(f"{folder}: transformers cannot load it as a masked LM: {problem}") from problem
    return network, report


def _mask_id(settings: Settings) -> int:
    stated = settings.token("mask_token_id", settings.count("vocab_size"))
    if stated is not None:
        return stated
    folder = settings.file.parent
    mask = mask_of(folder, read_tokenizer(folder, None, {})) if has_tokenizer(folder) else None
    if mask is None:
        raise ModelError(f"{folder}: neither config.json's 'mask_token_id' nor a tokenizer names a mask token")
    return mask

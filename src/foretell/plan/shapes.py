"""The shape of a model without its weights: from a folder, a known model, or its config.json on the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import ModelError, RequestError, unknown
from foretell.loop.protocols import Denoiser
from foretell.models.family import Settings
from foretell.models.hub import download_config, is_hub_id
from foretell.models.load import BUNDLED, family_of
from foretell.models.transformer import TransformerConfig

# The config.json of published models, as far as `models.llada` and `models.dream` read it.
_LLADA_8B: dict[str, Any] = {
    "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "vocab_size": 126464, "embedding_size": 126464, "mask_token_id": 126336, "max_sequence_length": 4096,
    "rope_theta": 500000.0, "weight_tying": False,
}  # fmt: skip
_DREAM_7B: dict[str, Any] = {
    "model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "mask_token_id": 151666,
    "max_position_embeddings": 131072, "rope_theta": 1000000.0, "tie_word_embeddings": False,
}  # fmt: skip
KNOWN: dict[str, dict[str, Any]] = {"llada-8b": _LLADA_8B, "dream-7b": _DREAM_7B}
PUBLISHED = {
    "GSAI-ML/LLaDA-8B-Base": "llada-8b",
    "GSAI-ML/LLaDA-8B-Instruct": "llada-8b",
    "GSAI-ML/LLaDA-1.5": "llada-8b",
    "Dream-org/Dream-v0-Base-7B": "dream-7b",
    "Dream-org/Dream-v0-Instruct-7B": "dream-7b",
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a network, with the number of weights in its matrices."""

    name: str
    config: TransformerConfig
    wrap: Callable[[Denoiser], Denoiser]  # what the model's family puts around the network

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers: every column of a pass is multiplied by each of them once."""
        size = self.config
        attention = 2 * size.dim * size.dim + 2 * size.dim * size.kv_heads * size.head_dim
        return size.layers * (attention + 3 * size.dim * size.hidden)

    @property
    def head_weights(self) -> int:
        """Weights of the head: every position that is read is multiplied by each of them once."""
        return self.config.dim * (self.config.outputs or self.config.vocab_size)

    @property
    def parameters(self) -> int:
        """All weights, also those of the embedding, the norms and the biases."""
        size = self.config
        biases = size.layers * (size.dim + 2 * size.kv_heads * size.head_dim) if size.qkv_bias else 0
        norms = (2 * size.layers + 1) * size.dim
        outer = size.dim * size.vocab_size + (0 if size.tied else self.head_weights)
        return self.layer_weights + outer + norms + biases


def find_shape(model: str, revision: str | None = None) -> ModelShape:
    """Return the shape of a folder, a bundled model, a known model (`llada-8b`) or a model on the hub.

    Weights are neither read nor downloaded. Of a hub model that is not known, only config.json is downloaded.
    """
    bundled = [path.parent.name for path in BUNDLED.glob("*/config.json")]
    if Path(model).exists() or model in bundled:
        if revision is not None:
            raise RequestError(f"a revision is for models on the hub; {model} is a folder on this machine")
        folder = Path(model) if Path(model).exists() else BUNDLED / model
        return _shape(folder.absolute().name, Settings.read(folder))
    known = PUBLISHED.get(model, model.lower())
    if known in KNOWN and revision is None:
        return _shape(model, Settings(Path(f"{known}/config.json"), KNOWN[known]))
    if is_hub_id(model):
        return _shape(model, Settings.read(download_config(model, revision)))
    raise ModelError(
        f"there is no folder {model!r}; {unknown('model', model, (*bundled, *KNOWN))}; a model on the Hugging Face hub "
        f"is owner/name"
    )


def _shape(name: str, settings: Settings) -> ModelShape:
    family = family_of(settings)
    if family is None:
        raise ModelError(f"{settings.file}: only LLaDA's and Dream's networks can be planned, not a masked LM")
    return ModelShape(name, family.configure(settings), family.wrap)

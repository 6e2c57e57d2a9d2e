"""Early-commit decoding for diffusion language models."""

"""Training, evaluation and study of diffusion language models."""

"""Training and distilling LLaDA-format models."""

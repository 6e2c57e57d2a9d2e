"""lm-evaluation-harness with Foretell among its models."""

"""Run code that a model wrote in a restricted process."""

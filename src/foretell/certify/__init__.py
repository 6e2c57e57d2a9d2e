"""Certificates: recipes and stopping rules whose risk is shown to be small, replays on traces, and the judge."""

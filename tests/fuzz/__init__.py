"""Hostile inputs: every case must end in a good result or in a ForetellError. Run with `make fuzz`."""

"""Predict what serving a model costs: rooflines of known devices, and a simulation of the scheduler."""

"""Stopping rules with a proven risk: calibration, replay studies, the learned judge."""

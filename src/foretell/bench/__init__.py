"""Comparing speed and memory: timings that take turns, queues, peaks."""

"""Measure and compare speed and memory: timings, queues of requests, peak memory."""

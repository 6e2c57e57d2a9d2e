"""Benchmarks decoded under recipes: resumable runs, records on disk, reports with intervals."""

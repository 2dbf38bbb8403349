"""Benchmarks: each measures against a baseline in the same run, since machines are noisy."""

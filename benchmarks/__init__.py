"""Benchmarks of speed, memory, scaling and quality, which `python -m benchmarks NAME` runs."""

"""Benchmarks of speed, memory and scaling: python -m benchmarks NAME prints one JSON object on its last line."""

"""What measures speed, scaling and quality: python -m benchmarks NAME, whose last line is one JSON object."""

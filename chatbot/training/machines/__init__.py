"""Training with several processes or machines."""

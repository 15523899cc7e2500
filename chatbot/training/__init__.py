"""Training: data, devices, the gradient function, variable updates, the loop, checkpoints and metrics."""

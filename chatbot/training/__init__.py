"""Training: data, devices, gradients, variable updates, the training loop, checkpoints and metrics."""

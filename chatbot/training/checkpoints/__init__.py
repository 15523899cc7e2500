"""Saves and restores the checkpoints of a training run, which contain tensors and the progress of the run."""

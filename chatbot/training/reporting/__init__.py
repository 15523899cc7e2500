"""Reports the progress of a training run in the terminal, metrics.jsonl, TensorBoard and wandb."""

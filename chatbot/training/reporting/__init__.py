"""The output of a run while it trains: the terminal, metrics.jsonl and TensorBoard."""

"""The devices of a run: GPUs, the towers on them, what they need, and what happens when they fail."""

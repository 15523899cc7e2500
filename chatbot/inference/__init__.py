"""Generates replies to questions, for chatting, for evaluation, and for the sample replies during training."""

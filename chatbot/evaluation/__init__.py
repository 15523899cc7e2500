"""Measures of a trained model: the likelihood of held-out replies, and the quality and variety of its own replies."""

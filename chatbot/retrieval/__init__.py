"""Retrieves and ranks replies that people wrote to similar questions. TensorFlow is not required."""

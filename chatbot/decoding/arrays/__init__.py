"""The searches' functions of log-probabilities in NumPy: twins of those in TensorFlow, one a file or a few.

Arrays of log-probabilities and logits are [rows, vocabulary] float32. The rows may be at different positions.
"""

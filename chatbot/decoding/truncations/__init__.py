"""Truncations, one a file: what sampling may pick, as functions log_probs [rows, vocabulary] -> log_probs.

The log-probabilities need not be normalised, and ids of -inf are not allowed. The most probable id, or the first of the
order, is always kept.
"""

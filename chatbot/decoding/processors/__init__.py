"""Processors of log-probabilities, one a file: penalties, forbidden ids, the anti-language model."""

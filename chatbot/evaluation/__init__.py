"""Evaluates trained models: likelihood, reply selection, quality measures of replies, and an HTML report."""

"""Faster equivalents of parts of the model, selected by --fast. Tests compare each with the plain computation."""

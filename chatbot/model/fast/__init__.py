"""Faster equivalents of parts of the model. Tests compare each with the plain computation."""

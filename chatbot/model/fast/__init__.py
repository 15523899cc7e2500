"""Faster computations of what the plain model computes, selected by --fast. A test compares each with its slow twin."""

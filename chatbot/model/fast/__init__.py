"""Paths that compute what the plain model computes, faster; each has a slow twin in a test, and --fast turns it off."""

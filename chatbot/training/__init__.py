"""Towers on devices, one shared optimizer, and the loop that drives them."""

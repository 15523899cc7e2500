"""Cleaning and tokenisation: what is done to every utterance."""

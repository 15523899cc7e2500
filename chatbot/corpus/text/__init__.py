"""Cleaning and tokenisation of utterances."""

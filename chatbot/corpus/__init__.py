"""Corpora: reading, cleaning, tokenisation, encoding, batching and inspection."""

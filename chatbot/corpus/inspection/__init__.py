"""What a corpus is like, measured and reported before training (`python -m chatbot.corpus inspect`)."""

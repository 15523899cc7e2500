"""A report on a corpus before training (`python -m chatbot.corpus inspect`)."""

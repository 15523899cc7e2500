"""The chat with a trained model in a terminal."""

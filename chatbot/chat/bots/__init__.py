"""A Telegram bot that replies with a model."""

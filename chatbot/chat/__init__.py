"""Chatting with a model in a terminal, through a pipe, over HTTP, or on Telegram."""

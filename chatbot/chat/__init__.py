"""The chat with a model: in a terminal or through a pipe, by HTTP (OpenAI's API and a page), and as a bot."""

"""The server: OpenAI's chat-completions API over the models of this machine."""

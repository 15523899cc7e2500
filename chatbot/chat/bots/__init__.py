"""The Telegram bot: an adapter of the service over one function of a message, `conversations.Answer`."""

"""Bots: services that ask a model questions. Each has an adapter over one function, `conversations.Answer`."""

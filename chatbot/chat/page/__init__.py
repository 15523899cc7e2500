"""The page of the chat: its parts, and the one document that they make."""

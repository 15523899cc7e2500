"""The chat in a terminal, and through a pipe: one reply line for each input line."""

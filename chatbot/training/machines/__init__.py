"""Training in several processes or on several machines: their addresses, start, agreement, and loss."""

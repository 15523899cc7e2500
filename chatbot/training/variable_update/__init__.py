"""Variable updates: where the variables are stored, and how gradients are summed. Each has its own module."""

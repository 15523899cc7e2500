"""Search over token ids. It knows one function, step(state, ids) -> (logits, state), and no model."""

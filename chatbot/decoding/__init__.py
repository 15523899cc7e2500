"""Searches for token ids. They call step(state, ids) -> (logits, state) and do not depend on the model."""

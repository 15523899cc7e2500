"""Search algorithms that generate token ids. They work with any model that has a function `step(state, ids)`."""

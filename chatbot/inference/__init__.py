"""From text to reply: one engine for chat, evaluation and the samples of a training run."""

"""From a question to a reply: one engine for the chat, the evaluation and the sample replies of a training run."""

"""A small Transformer, in place of the sizes of a recurrent model."""

from typing import Any

from chatbot.config.model import ModelSettings

TRANSFORMER: dict[str, Any] = {
    "architecture": "transformer",
    **{name: getattr(ModelSettings, name) for name in ("rnn_size", "bidirectional")},
    "embedding_size": 12,
    "heads": 4,  # of an odd size
    "feed_forward_size": 20,
    "num_layers": 2,
}

"""Variants of the Transformer architecture, as needed for pretrained models."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from chatbot.errors import UserError

LAYER = "layer"
ROOT_MEAN_SQUARE = "rms"
WAVES = "waves"
TABLE = "table"
RELATIVE = "relative"
SILU = "silu"
GELU = "gelu"
GELU_TANH = "gelu_tanh"
RELU = "relu"
CHOICES = {
    "norm": (LAYER, ROOT_MEAN_SQUARE),
    "positions": (WAVES, TABLE, RELATIVE),
    "activation": (SILU, GELU, GELU_TANH, RELU),
}


@dataclasses.dataclass(frozen=True)
class Form:
    """Variant of the Transformer architecture. The defaults describe a model that is trained from scratch.

    Attributes:
        norm_first: Whether a layer computes x + f(norm(x)) (pre-norm), or norm(x + f(x)) (post-norm).
        norm: Type of normalisation: layer normalisation, or RMS normalisation, which has no shift.
        epsilon: Small constant in the normalisation that prevents division by zero.
        embedding_norm: Whether the sum of token embeddings and position embeddings is normalised.
        positions: Type of position embeddings: sinusoidal, learned, or learned biases for relative distances.
        rows: Number of learned position embeddings.
        buckets: Number of buckets into which relative distances are grouped.
        farthest: Distance from which on all positions are in the same bucket.
        activation: Activation function of the feed-forward layers.
        gated: Whether a second projection of the same size gates the activation.
        attention_biases: Whether the projections to queries, keys and values have biases.
        biases: Whether all other projections of a layer, and the output layer, have biases.
        scaled_scores: Whether attention scores are multiplied by 1 / sqrt(head_size).
        scaled_embedding: Whether embeddings are multiplied by sqrt(size).
        scaled_output: Whether logits are multiplied by 1 / sqrt(size).
        head_size: Size of each attention head; size / heads if None.
        decoder_layers: Number of decoder layers; the number of encoder layers if None.
    """

    norm_first: bool = True
    norm: str = LAYER
    epsilon: float = 1e-6
    embedding_norm: bool = False
    positions: str = WAVES
    rows: int = 0
    buckets: int = 0
    farthest: int = 0
    activation: str = SILU
    gated: bool = False
    attention_biases: bool = False
    biases: bool = True
    scaled_scores: bool = True
    scaled_embedding: bool = True
    scaled_output: bool = False
    head_size: int | None = None
    decoder_layers: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            default = field.default
            value = getattr(self, field.name)
            if value is None and default is None:
                continue
            kind = int if default is None else type(default)
            is_allowed = type(value) is kind and value in CHOICES.get(field.name, (value,))
            if not is_allowed or (isinstance(value, int | float) and not 0 <= value <= 100_000):
                raise UserError(f"form: {field.name} {value!r} is not allowed; restore the file from a backup")
        if self.positions == TABLE and self.rows < 3:
            raise UserError(f"form: a table of {self.rows} positions is too small; restore the file from a backup")
        if self.positions == RELATIVE and not 4 <= self.buckets < 2 * self.farthest:
            raise UserError(
                f"form: {self.buckets} buckets for distances up to {self.farthest}; restore the file from a backup"
            )

    @property
    def longest(self) -> int:
        """Maximum length of a sequence in tokens, without BOS."""
        return self.rows - 1 if self.positions == TABLE else 10_000

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Form":
        """Create a variant from values by attribute name. Raises UserError if a value is not allowed."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not {*values} <= names:
            raise UserError("form: unknown settings; restore the file from a backup")
        return cls(**values)

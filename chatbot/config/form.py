"""What pretrained Transformers compute otherwise than one that is trained from scratch."""

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
    """The variant of a Transformer; the defaults are the one that is trained from scratch.

    norm_first: x + part(normalise(x)), with a normalisation at the end, or else normalise(x + part(x)). norm: by mean
    and variance (layer), or by the root mean square alone (rms), which has no shift. embedding_norm: whether the sums
    of embeddings and positions are normalised. positions: waves, a learned table, or learned scores of distances. rows:
    the places that the table has. buckets, farthest: of distances, and the distance from which on all share one. gated:
    whether a second product of the same size gates the activation. attention_biases: of queries, keys and values;
    biases: of the other products of a layer, and of the output. scaled_scores: by 1 / sqrt(head size).
    scaled_embedding: by sqrt(size); scaled_output: the logits by 1 / sqrt(size). head_size: None: size / heads.
    decoder_layers: None: as many as the encoder has.
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
            is_right = type(value) is kind and value in CHOICES.get(field.name, (value,))
            if not is_right or (isinstance(value, int | float) and not 0 <= value <= 100_000):
                raise UserError(f"form: {field.name} {value!r} is not allowed; restore the file from a backup")
        if self.positions == TABLE and self.rows < 3:
            raise UserError(f"form: a table of {self.rows} positions; restore the file")
        if self.positions == RELATIVE and not 4 <= self.buckets < 2 * self.farthest:
            raise UserError(f"form: {self.buckets} buckets of distances to {self.farthest}; restore the file")

    @property
    def longest(self) -> int:
        """The longest sequence in tokens for which there are positions, beside the token that begins a reply."""
        return self.rows - 1 if self.positions == TABLE else 10_000

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Form":
        """Return the form with the values of a file. Raises UserError for what is no form."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not {*values} <= names:
            raise UserError("form: not of this version; restore the file from a backup")
        return cls(**values)

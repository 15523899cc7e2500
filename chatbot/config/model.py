"""Settings of the model: its layers and their sizes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from chatbot.config.form import Form
from chatbot.errors import UserError
from chatbot.flags import Flags, flags_of, setting

RECURRENT = "recurrent"
TRANSFORMER = "transformer"
# Settings that apply to only one architecture.
RECURRENT_SETTINGS = ("cell", "rnn_size", "residual", "bidirectional", "attention")
TRANSFORMER_SETTINGS = ("heads", "feed_forward_size", "recompute_activations")


@dataclasses.dataclass(frozen=True)
class ModelSettings(Flags, fixed=True):
    """Settings of the model, which is built by `Seq2Seq`."""

    max_length: int = setting(
        50,
        "maximum number of tokens in a question and in a reply; longer pairs are not learned",
        group="data",
        minimum=2,
        maximum=10_000,
    )
    architecture: str = setting(
        RECURRENT, "type of the encoder and the decoder", group="model", choices=(RECURRENT, TRANSFORMER)
    )
    heads: int = setting(4, "number of attention heads per layer (Transformer only)", minimum=1)
    feed_forward_size: int = setting(1024, "hidden units of the feed-forward layers (Transformer only)", minimum=1)
    cell: str = setting("lstm", "type of the recurrent layers", choices=("lstm", "gru"))
    rnn_size: int = setting(256, "number of units in each recurrent layer", unset="set by --preset, or 256", minimum=1)
    num_layers: int = setting(
        1, "number of layers in the encoder and in the decoder", unset="set by --preset, or 1", minimum=1
    )
    residual: bool = setting(False, "add residual connections, starting at the second recurrent layer")
    embedding_size: int = setting(256, "size of the token embeddings", minimum=1)
    word_vectors: str | None = setting(
        None,
        "text file of word2vec, GloVe or fastText vectors (.vec) that initialise the token embeddings",
        metavar="FILE",
        fixed=False,
    )
    tied_embeddings: bool = setting(True, "use the token embeddings as the weights of the output layer, too")
    bidirectional: bool = setting(
        True, "read each question in both directions, with half of the --rnn-size units per direction"
    )
    attention: str = setting(
        "luong",
        "attention score function: multiplicative (luong), additive (bahdanau), or none for no attention",
        choices=("luong", "bahdanau", "none"),
    )
    copy: bool = setting(
        False,
        "let replies copy tokens or single characters from the question",
        unset="set by --preset, or off",
        negatable=True,
    )
    ngrams: int = setting(
        0,
        "maximum length of the training n-grams whose probabilities are mixed with the model's; 0 disables n-grams",
        unset="set by --preset, or 0",
        minimum=0,
        maximum=5,
    )
    ngram_weight: float = setting(
        0.35,
        "weight of the n-gram probabilities that --ngrams mixes with the model's",
        unset="set by --preset, or 0.35",
        above=0,
        maximum=0.99,
    )
    keep_prob: float = setting(
        0.5,
        "fraction of units that dropout keeps; 1 disables dropout",
        unset="set by --preset, or 0.5",
        above=0,
        maximum=1,
        fixed=False,
    )
    recompute_activations: bool = setting(
        False,
        "recompute activations in the backward pass, which saves memory but takes more time (Transformer only)",
        group="speed",
        negatable=True,
        fixed=False,
    )
    # Whether to use Keras's recurrent layers instead of our faster ones. Exports and tests need Keras's layers.
    plain_layers: bool = False
    # Architecture of a pretrained Transformer, or None for a model trained from scratch. It is stored in config.json.
    form: Form | None = None

    @property
    def units(self) -> int:
        """Output size of each layer."""
        return self.embedding_size if self.architecture == TRANSFORMER else self.rnn_size

    @property
    def decoder_layers(self) -> int:
        """Number of decoder layers of a Transformer."""
        return (self.form and self.form.decoder_layers) or self.num_layers

    @property
    def head_size(self) -> int:
        """Size of the queries, keys and values in each attention head of a Transformer."""
        return (self.form and self.form.head_size) or self.embedding_size // self.heads

    @property
    def score_scale(self) -> float:
        """Factor by which a Transformer multiplies its attention scores."""
        return 1.0 if self.form and not self.form.scaled_scores else float(self.head_size**-0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_architecture(
            self.architecture, {n: value for n, value in vars(self).items() if value != getattr(ModelSettings, n)}
        )
        size = self.embedding_size
        heads = self.heads
        divides = size % heads == 0 or (self.form is not None and self.form.head_size is not None)
        if self.architecture == TRANSFORMER and (not divides or size % 2):
            raise UserError(
                f"--heads {heads}: must divide --embedding-size {size}, an even number; change one of the two"
            )
        if self.form is not None and self.max_length > self.form.longest:
            positions = self.form.longest
            raise UserError(
                f"--max-length {self.max_length}: the pretrained model has {positions} positions; "
                f"give at most {positions}"
            )
        if self.form is not None and self.copy:
            raise UserError("--copy: not available in a pretrained model; leave it out")
        if self.copy and self.attention == "none":
            raise UserError("--copy: needs attention; use --attention luong, or leave out --copy")
        if self.ngrams == 1:
            raise UserError("--ngrams 1: an n-gram has at least 2 tokens; give 2 to 5, or 0 for none")
        if self.residual and self.num_layers == 1:
            raise UserError("--residual: needs several layers; use --num-layers 2 or more")
        if self.bidirectional and self.rnn_size % 2:
            raise UserError(
                f"--rnn-size {self.rnn_size}: both directions share it; make it even or add --no-bidirectional"
            )


def check_architecture(architecture: str, values: Mapping[str, Any]) -> None:
    """Raise UserError if one of these settings applies only to another architecture."""
    for name in RECURRENT_SETTINGS if architecture == TRANSFORMER else TRANSFORMER_SETTINGS:
        if name in values:
            flag = " ".join(flags_of(ModelSettings)[name].words(values[name]))
            raise UserError(f"{flag}: not used by --architecture {architecture}; leave it out")

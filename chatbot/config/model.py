"""Settings of the model: its layers and their sizes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from chatbot.config.form import Form
from chatbot.errors import UserError
from chatbot.flags import Flags, flags_of, setting

DATA = "data"
MODEL = "model"
SPEED = "speed"
RECURRENT = "recurrent"
TRANSFORMER = "transformer"
# Settings of one architecture, which the other one does not use.
OF_RECURRENT = ("cell", "rnn_size", "residual", "bidirectional", "attention")
OF_TRANSFORMER = ("heads", "feed_forward_size", "recompute_activations")


@dataclasses.dataclass(frozen=True)
class ModelSettings(Flags, fixed=True):
    """The settings of `Seq2Seq`. Raises UserError for a value out of range."""

    max_length: int = setting(
        50, "longest question and reply in tokens; longer pairs are dropped", group=DATA, least=2, most=10_000
    )
    architecture: str = setting(
        RECURRENT, "layers of the encoder and the decoder", group=MODEL, choices=(RECURRENT, TRANSFORMER)
    )
    heads: int = setting(4, "with --architecture transformer: heads of each attention", least=1)
    feed_forward_size: int = setting(
        1024, "with --architecture transformer: units between the two products of a layer", least=1
    )
    cell: str = setting("lstm", "type of the recurrent layers", choices=("lstm", "gru"))
    rnn_size: int = setting(256, "units of each recurrent layer", unset="by --preset, or 256", least=1)
    num_layers: int = setting(1, "layers of the encoder and of the decoder", unset="by --preset, or 1", least=1)
    residual: bool = setting(False, "from the second recurrent layer on, add the inputs of a layer to its outputs")
    embedding_size: int = setting(256, "size of the embedding vector of a token", least=1)
    word_vectors: str | None = setting(
        None, "start the embedding from a text file of word2vec, GloVe or fastText (.vec)", metavar="FILE", fixed=False
    )
    tied_embeddings: bool = setting(True, "the embedding is also the output matrix, from which the logits are computed")
    bidirectional: bool = setting(
        True, "the encoder reads each question forwards and backwards, with half of --rnn-size for each"
    )
    attention: str = setting(
        "luong", "score of attention: multiplicative, additive, or none", choices=("luong", "bahdanau", "none")
    )
    copy: bool = setting(
        False,
        "a reply may copy tokens of the question, or single characters of them",
        unset="by --preset, or off",
        negatable=True,
    )
    ngrams: int = setting(
        0,
        "mix in the probabilities of the n-grams of the training pairs, of up to N tokens; 0: none",
        unset="by --preset, or 0",
        least=0,
        most=5,
    )
    ngram_weight: float = setting(
        0.35, "with --ngrams: weight of the n-grams in the mixture", unset="by --preset, or 0.35", above=0, most=0.99
    )
    keep_prob: float = setting(
        0.5,
        "fraction of units that dropout keeps; 1: no dropout",
        unset="by --preset, or 0.5",
        above=0,
        most=1,
        fixed=False,
    )
    recompute_activations: bool = setting(
        False,
        "with --architecture transformer: keep only the inputs of each layer, and compute the rest again for the "
        "gradients; less memory, slower steps",
        group=SPEED,
        negatable=True,
        fixed=False,
    )
    # Compute the recurrent layers by Keras, not by chatbot/model/fast_recurrent.py: for an export, and for tests that
    # compare both.
    plain_layers: bool = False
    # What a Transformer from elsewhere computes otherwise; None: nothing. It is in config.json.
    form: Form | None = None

    @property
    def units(self) -> int:
        """The size of the outputs of a layer."""
        return self.embedding_size if self.architecture == TRANSFORMER else self.rnn_size

    @property
    def decoder_layers(self) -> int:
        """The layers of a Transformer's decoder."""
        return (self.form and self.form.decoder_layers) or self.num_layers

    @property
    def head_size(self) -> int:
        """The size of a Transformer's queries, keys and values in each head."""
        return (self.form and self.form.head_size) or self.embedding_size // self.heads

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys."""
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
            raise UserError(f"--heads {heads}: must divide --embedding-size {size}, an even number; change one of both")
        if self.form is not None and self.max_length > self.form.longest:
            places = self.form.longest
            raise UserError(
                f"--max-length {self.max_length}: the pretrained model has {places} places; give at most that"
            )
        if self.form is not None and self.copy:
            raise UserError("--copy: a pretrained model has none; leave it out")
        if self.copy and self.attention == "none":
            raise UserError("--copy: needs attention; use --attention luong, or leave out --copy")
        if self.ngrams == 1:
            raise UserError("--ngrams 1: the length of the longest n-grams; give 2 to 5, or 0 for none")
        if self.residual and self.num_layers == 1:
            raise UserError("--residual: the first recurrent layer has none; use --num-layers 2 or more")
        if self.bidirectional and self.rnn_size % 2:
            raise UserError(
                f"--rnn-size {self.rnn_size}: both directions share it; make it even or add --no-bidirectional"
            )


def check_architecture(architecture: str, values: Mapping[str, Any]) -> None:
    """Raise UserError if there is the value of a setting of the other architecture. values: by name."""
    for name in OF_RECURRENT if architecture == TRANSFORMER else OF_TRANSFORMER:
        if name in values:
            flag = " ".join(flags_of(ModelSettings)[name].words(values[name]))
            raise UserError(f"{flag}: not used by --architecture {architecture}; leave it out")

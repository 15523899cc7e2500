"""Settings of the model: layers, sizes, and the computation of the loss."""

import dataclasses

from chatbot.config.corpus import NONE, check_none
from chatbot.errors import UserError
from chatbot.flags import check_fields, setting

DATA, MODEL, SPEED = "data", "model", "speed"


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """The settings of `Seq2Seq`. Raises UserError for a value out of range."""

    max_length: int = setting(
        50,
        DATA,
        "longest question and longest reply in tokens, the end symbol included; longer pairs are dropped",
        kind=int,
        least=2,
        most=10_000,
        fixed=True,
    )
    cell: str = setting("lstm", MODEL, "recurrent cell", choices=("lstm", "gru"), fixed=True)
    rnn_size: int = setting(256, MODEL, "units of each recurrent layer", kind=int, least=1, fixed=True)
    num_layers: int = setting(
        1, MODEL, "recurrent layers of the encoder and of the decoder", kind=int, least=1, fixed=True
    )
    embedding_size: int = setting(256, MODEL, "units of a token embedding", kind=int, least=1, fixed=True)
    bidirectional: bool = setting(
        True,
        MODEL,
        "the encoder reads each question in both directions, with half of the rnn-size units for each",
        kind=bool,
        fixed=True,
    )
    attention: str = setting("luong", MODEL, "attention score", choices=("luong", "bahdanau", "none"), fixed=True)
    copy: bool = setting(
        False,
        MODEL,
        "a reply's token may be copied from the question: a token of it, or a character of one",
        kind=bool,
        fixed=True,
    )
    ngrams: int | None = setting(
        None,
        MODEL,
        "mix the model's probabilities with those of the n-grams of the training pairs, up to this length: a memory of "
        "rare words, for corpora of up to some 100,000 pairs",
        kind=int,
        least=2,
        most=5,
        fixed=True,
    )
    ngram_weight: float = setting(
        0.35, MODEL, "share of the n-grams in the mixture of --ngrams", kind=float, above=0, most=0.99, fixed=True
    )
    keep_prob: float = setting(0.5, MODEL, "fraction of units that dropout keeps", kind=float, above=0, most=1)
    fast: tuple[str, ...] = setting(
        ("lstm", "loss"),
        SPEED,
        "fast paths to use; each computes the same as the plain model: lstm (on CPUs: no padding is computed), "
        "loss (projection and cross-entropy in chunks), or none",
        many=True,
        choices=("lstm", "loss", NONE),
    )
    sampled_softmax: int | None = setting(
        None,
        SPEED,
        "train against this many sampled tokens instead of the whole vocabulary: faster if that is large, but less "
        "exact; validation is always exact",
        kind=int,
        least=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_none("fast", self.fast)
        if self.copy and self.attention == "none":
            raise UserError("--copy: needs attention; use --attention luong, or leave out --copy")
        if self.copy and self.sampled_softmax is not None:
            raise UserError("--copy and --sampled-softmax exclude each other; leave out one of the two")
        if self.bidirectional and self.rnn_size % 2:
            raise UserError(
                f"--rnn-size {self.rnn_size}: both directions share it; make it even or add --no-bidirectional"
            )

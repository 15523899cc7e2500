"""The settings of train.py: the source of its flags, of their --help and of config.json."""

import dataclasses

from chatbot.command_line import CommandLine
from chatbot.config.corpus import NONE, PIECES, CorpusSettings, EncodingSettings
from chatbot.config.learning import NATS, PARTS, LearningSettings, check_parts
from chatbot.config.model import ModelSettings
from chatbot.config.parallel import ParallelSettings
from chatbot.config.run import RunSettings
from chatbot.errors import UserError


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one attempt, made by `compose(Settings, rnn_size=64, steps=10)`.

    Raises UserError for a value out of range.
    """

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    encoding: EncodingSettings = dataclasses.field(default_factory=EncodingSettings)
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    learning: LearningSettings = dataclasses.field(default_factory=LearningSettings)
    parallel: ParallelSettings = dataclasses.field(default_factory=ParallelSettings)
    run: RunSettings = dataclasses.field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        if self.encoding.validation == NONE and self.learning.best_by != NATS:
            raise UserError("--best-by chooses by validation; leave out --validation none")
        if self.learning.label_smoothing and self.model.copy:
            raise UserError("--label-smoothing and --copy exclude each other; leave out one of the two")
        if self.corpus.tokenizer == PIECES and self.model.form is None:
            raise UserError("--tokenizer pieces: of a pretrained model; give --init-from FOLDER in its place")
        if self.corpus.tokenizer == PIECES and self.encoding.history:
            raise UserError("--history: a pretrained model has no marks of turns; leave it out")
        if self.corpus.tokenizer == PIECES and self.learning.both_directions == "on":
            raise UserError("--both-directions: of a pretrained model, only replies are learned; leave it out")
        if self.run.init_from is not None and self.model.word_vectors is not None:
            raise UserError("--init-from and --word-vectors exclude each other; leave out one of the two")
        if self.model.attention == NONE:
            check_parts(self.learning.frozen, [part for part in PARTS if part != "attention"])
        excluded = {
            "--accumulate": self.learning.accumulate > 1,
            "--deterministic": self.learning.deterministic,
            "--average": self.learning.average > 0,
            "--profile": self.run.profile is not None,
        }
        for flag, is_set in excluded.items():
            if self.parallel.asynchronous and is_set:
                raise UserError(f"--asynchronous and {flag} exclude each other; leave out one of the two")
        history, needed = self.encoding.history, 2 * (self.encoding.history + 1)  # a mark and a token of each turn
        if history and self.model.max_length < needed:
            raise UserError(
                f"--history {history}: longer than --max-length {self.model.max_length} can hold, which must be at "
                f"least {needed} for {history + 1} turns; lower --history or raise --max-length"
            )


TRAIN = CommandLine(
    Settings,
    "train",
    "A tower computes one share of each batch.",
    "--data pairs.tsv --attempt weibo",
    "data me columns history max_length validation attempt init_from preset rnn_size num_layers batch_size "
    "learning_rate steps epochs embeddings gpus towers dry_run config",
)

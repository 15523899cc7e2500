"""All settings of `duida train`. They define its flags, their help texts, and the content of config.json."""

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
    """All settings of a training run. Create them with `compose(Settings, rnn_size=64, steps=10)`."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    encoding: EncodingSettings = dataclasses.field(default_factory=EncodingSettings)
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    learning: LearningSettings = dataclasses.field(default_factory=LearningSettings)
    parallel: ParallelSettings = dataclasses.field(default_factory=ParallelSettings)
    run: RunSettings = dataclasses.field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        if self.encoding.validation == NONE and self.learning.best_by != NATS:
            raise UserError("--best-by: needs validation; leave out --validation none")
        if self.learning.label_smoothing and self.model.copy:
            raise UserError("--label-smoothing and --copy are mutually exclusive; use only one")
        if self.corpus.tokenizer == PIECES and self.model.form is None:
            raise UserError("--tokenizer pieces: needs a pretrained model; give --init-from FOLDER instead")
        if self.corpus.tokenizer == PIECES and self.encoding.history:
            raise UserError("--history: a pretrained model has no marks of turns; leave it out")
        if self.corpus.tokenizer == PIECES and self.learning.both_directions == "on":
            raise UserError("--both-directions: a pretrained model learns only replies; leave it out")
        if self.run.init_from is not None and self.model.word_vectors is not None:
            raise UserError("--init-from and --word-vectors are mutually exclusive; use only one")
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
                raise UserError(f"--asynchronous and {flag} are mutually exclusive; use only one")
        history, needed = self.encoding.history, 2 * (self.encoding.history + 1)  # each turn needs a mark and a token
        if history and self.model.max_length < needed:
            raise UserError(
                f"--history {history}: {history + 1} turns need --max-length {needed} or more, not "
                f"{self.model.max_length}; lower --history or raise --max-length"
            )


TRAIN = CommandLine(
    Settings,
    "train",
    about="A tower is a replica of the model that computes one share of each batch. Before a long run, --selftest "
    "checks the devices, and --dry-run measures memory and time.",
    example="--data pairs.tsv --attempt weibo",
    common="data me columns history max_length validation attempt init_from preset rnn_size batch_size "
    "learning_rate steps epochs embeddings gpus towers selftest dry_run config",
)

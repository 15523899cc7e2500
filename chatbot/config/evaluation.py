"""The settings of python -m chatbot.evaluation."""

import dataclasses

from chatbot.command_line import CommandLine
from chatbot.config.corpus import CACHE, FileSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import setting

DATA = "data"
RUN = "run"
AUTO_TOKENIZE = "auto"
ZH = "zh"
ANY = "13a"
CHAR = "char"
# The tokenisations of BLEU, as sacrebleu names them.
TOKENIZATIONS = (ZH, ANY, "intl", CHAR, "none")


@dataclasses.dataclass(frozen=True)
class HeldOutSettings(FileSettings):
    """Held-out pairs, and the attempt that replies to their questions."""

    data: tuple[str, ...] = setting(
        ..., "held-out question-answer pairs, in any usual format", group=DATA, metavar="FILE"
    )
    cache: str = setting(str(CACHE), "folder for encoded pairs; may be deleted at any time", metavar="FOLDER")
    baseline_data: tuple[str, ...] = setting(
        (), "pairs in which the baseline finds the most similar question", unset="those of the attempt", metavar="FILE"
    )
    attempt: str = setting("default", "the training run to measure: its name, or the path of its folder", group=RUN)
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)


@dataclasses.dataclass(frozen=True)
class EvaluationSettings(HeldOutSettings):
    """The settings of python -m chatbot.evaluation."""

    fluency_corpus: tuple[str, ...] = setting(
        (),
        "also measure how usual the characters of replies are among the replies of this corpus",
        group=DATA,
        metavar="FILE",
    )
    baseline: bool = setting(False, "also measure the training reply to the most similar training question", group=RUN)
    tokenize: str = setting(
        AUTO_TOKENIZE,
        "tokenisation of BLEU, as sacrebleu names it; auto: by the letters of the references",
        choices=(AUTO_TOKENIZE, *TOKENIZATIONS),
    )
    report: str | None = setting(None, "also write an HTML file with every reply and its scores", metavar="FILE")
    precision: float | None = setting(
        None, "also find the --min-score with which this share of answers is right, such as 0.95", above=0, most=1
    )
    outside: str | None = setting(
        None, "with --precision: a text file of questions, one a line, to which any answer is wrong", metavar="FILE"
    )
    json: bool = setting(False, "print all measures as one JSON object, too; without it, only to a pipe or a file")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside and self.precision is None:
            raise UserError(f"--outside {self.outside}: not used without --precision; add it")


EVALUATE = CommandLine(
    EvaluationSettings,
    "evaluate",
    "In a pipe, JSON is the last line.",
    "--attempt weibo --data held_out.tsv",
    "data columns map head attempt beam_size temperature top_p retrieve baseline precision report json",
    without="n_best min_score fallback rules",
)

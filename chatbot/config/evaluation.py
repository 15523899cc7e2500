"""Settings of `duida evaluate`."""

import dataclasses

from chatbot.command_line import CommandLine
from chatbot.config.corpus import AUTO, CACHE, FileSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import setting

ZH = "zh"
ANY = "13a"
CHAR = "char"
# Names of tokenisation methods for BLEU. They are the same as in sacrebleu.
TOKENIZATIONS = (ZH, ANY, "intl", CHAR, "none")


@dataclasses.dataclass(frozen=True)
class HeldOutSettings(FileSettings):
    """Command-line settings: held-out pairs and the model to evaluate."""

    data: tuple[str, ...] = setting(
        ..., "files of held-out question-answer pairs, in any common format", group="data", metavar="FILE"
    )
    cache: str = setting(
        str(CACHE), "cache folder for encoded pairs, which can be deleted at any time", metavar="FOLDER"
    )
    baseline_data: tuple[str, ...] = setting(
        (), "files of pairs for the retrieval baseline to search", unset="the attempt's training pairs", metavar="FILE"
    )
    attempt: str = setting("default", "attempt to evaluate: its name or folder", group="run")
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)


@dataclasses.dataclass(frozen=True)
class EvaluationSettings(HeldOutSettings):
    """All settings of `duida evaluate`."""

    fluency_corpus: tuple[str, ...] = setting(
        (),
        "also score the fluency of replies with character n-grams, which are counted in the replies of this corpus",
        group="data",
        metavar="FILE",
    )
    baseline: bool = setting(
        False,
        "also evaluate the retrieval baseline, which answers with the training reply to the most similar question",
        group="run",
    )
    tokenize: str = setting(
        AUTO,
        "tokenisation for BLEU, as in sacrebleu; auto chooses it by the script of the references",
        choices=(AUTO, *TOKENIZATIONS),
    )
    report: str | None = setting(None, "also write an HTML report with every reply and its scores", metavar="FILE")
    precision: float | None = setting(
        None,
        "also determine the --min-score at which this fraction of the answers is correct, such as 0.95",
        above=0,
        maximum=1,
    )
    outside: str | None = setting(
        None,
        "text file of out-of-domain questions, one per line; --precision counts every answer to them as wrong",
        metavar="FILE",
    )
    json: bool = setting(
        False, "also print all metrics as one JSON object", unset="off in a terminal, on in a pipe or file"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside and self.precision is None:
            raise UserError(f"--outside {self.outside}: not used without --precision; add it")


EVALUATE = CommandLine(
    EvaluationSettings,
    "evaluate",
    about="If the output goes to a pipe, its last line is JSON.",
    example="--attempt weibo --data held_out.tsv",
    common="data columns map head attempt beam_size temperature top_p retrieve baseline precision report json",
    without="n_best min_score fallback rules",
)

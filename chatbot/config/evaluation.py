"""The settings of python -m chatbot.evaluation."""

import dataclasses

from chatbot.command_line import CommandLine, program
from chatbot.config.corpus import CACHE, FileSettings
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import setting

DATA, RUN, SHEET = "data", "run", "sheet"
AUTO_TOKENIZE, ZH, ANY, CHAR = "auto", "zh", "13a", "char"
# The tokenisations of BLEU, as sacrebleu names them.
TOKENIZATIONS = (ZH, ANY, "intl", CHAR, "none")
# The sources of replies on a sheet, beside other attempts and files.
SOURCES = PEOPLE, NEAREST, MODEL, BEAM = "people", "nearest", "model", "beam"
QUESTIONS = 70  # of a sheet without --number


@dataclasses.dataclass(frozen=True)
class EvaluationSettings(FileSettings):
    """The settings of python -m chatbot.evaluation."""

    data: tuple[str, ...] = setting(
        (),
        "held-out question-answer pairs, in any usual format; default: none, only to count a --sheet",
        group=DATA,
        metavar="FILE",
    )
    cache: str = setting(str(CACHE), "folder for encoded pairs; may be deleted at any time", metavar="FOLDER")
    attempt: str = setting("default", "the training run to measure: its name, or the path of its folder", group=RUN)
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)

    baseline: bool = setting(False, "also measure the training reply to the most similar training question")
    baseline_data: tuple[str, ...] = setting(
        (), "pairs for --baseline and nearest; default: those of the attempt", group=DATA, metavar="FILE"
    )

    fluency_corpus: tuple[str, ...] = setting(
        (), "also measure how usual the characters of replies are among the replies of this corpus", metavar="FILE"
    )

    tokenize: str = setting(
        AUTO_TOKENIZE,
        "tokenisation of BLEU, as sacrebleu names it; auto: by the letters of the references",
        group=RUN,
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

    sheet: str | None = setting(
        None,
        "write a sheet of replies for a person to rate, who does not see their sources; once it is rated, count it",
        group=SHEET,
        metavar="FOLDER",
    )
    compare: tuple[str, ...] = setting(
        (),
        "sources of replies: people (the answers of --data), nearest (as --baseline), model (this attempt), beam (this "
        "attempt with --beam-size 5 --retrieve none), another attempt, or a file with one reply for each question",
        metavar="SOURCE",
    )
    number: int | None = setting(None, "with --sheet and --compare: questions, drawn at random; default: 70", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data and (self.sheet is None or self.compare):
            # The words of argparse; a sheet is counted without pairs.
            see = f"(see {program('evaluate')} --help)"
            raise UserError(f"the following arguments are required: --data {see}")
        if self.outside and self.precision is None:
            raise UserError(f"--outside {self.outside}: not used without --precision; add it")
        if self.compare and self.sheet is None:
            raise UserError(f"--compare {' '.join(self.compare)}: not used without --sheet; add --sheet FOLDER")
        if self.number is not None and not self.compare:
            raise UserError(f"--number {self.number}: for a new sheet; add --sheet FOLDER --compare SOURCE")
        if len(set(self.compare)) < len(self.compare):
            raise UserError(f"--compare {' '.join(self.compare)}: a source is given twice; give each of them once")
        if self.sheet is not None and (
            self.report is not None or self.baseline or self.fluency_corpus or self.precision
        ):
            raise UserError(
                f"--sheet {self.sheet}: nothing is measured with it; leave out --report, --baseline, "
                "--precision and --fluency-corpus, or run the command again without --sheet"
            )


EVALUATE = CommandLine(
    EvaluationSettings,
    "evaluate",
    "Measure a trained chatbot on held-out pairs, or have its replies rated. In a pipe, JSON is the last line.",
    "--attempt weibo --data held_out.tsv",
    "data columns map head attempt beam_size temperature top_p retrieve baseline precision report json sheet compare",
    without="n_best min_score fallback rules",
)

"""Settings of a corpus: its files, and how its text is cleaned, tokenised, encoded and cached."""

import codecs
import dataclasses
from pathlib import Path

from chatbot.command_line import CommandLine
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

CACHE = Path("data/cache")
MIN_VOCABULARY = 262  # minimum size of a vocabulary: special tokens, 256 bytes, and the space token
HISTORY_MARKS = 2  # number of additional tokens that mark speakers in a conversation history
MAX_HISTORY = 1_000

# Names of file formats. `chatbot.corpus.reading.read.FORMATS` contains the function that reads each format.
FORMATS = (
    *("tsv", "csv", "jsonl", "json", "yaml", "conv", "lines", "qa", "douban", "eou", "turns", "parlai", "template"),
    *("srt", "ass", "whatsapp", "telegram", "wechat-mail", "qq", "qqnt", "qq-chat-exporter", "weflow"),
    *("wechatexporter", "discord", "line", "kakaotalk", "hexchat", "imessage"),
)
# Cleaning rules that change the text of an utterance, in the order in which they are applied.
TEXT_RULES = {
    "markup": "strip HTML and Markdown",
    "nfkc": "apply Unicode NFKC normalisation",
    "control": "remove control characters",
    "spaces": "remove spaces next to Chinese characters",
    "simplified": "convert to simplified Chinese",
    "urls": "remove web addresses",
    "names": "remove @names",
    "punctuation": "shorten repeated punctuation",
}
# Cleaning rules that drop pairs.
PAIR_RULES = {"equal": "drop pairs whose question equals the answer", "duplicates": "drop repeated pairs"}
NONE = "none"
AUTO = "auto"
PIECES = "pieces"


@dataclasses.dataclass(frozen=True)
class FileSettings(Flags):
    """Files of pairs, and options for reading them."""

    data: tuple[str, ...] = setting(
        (),
        "files, folders or glob patterns of question-answer pairs, in any common format",
        unset="the Chinese ChatterBot corpus",
        group="data",
        metavar="FILE",
    )
    columns: tuple[str, ...] = setting(
        (),
        "columns or fields that contain the question and the answer: two names, or two numbers counted from 1",
        unset="detected",
        count=2,
        metavar="COLUMN",
    )
    encoding: str | None = setting(
        None, "character encoding of all files, such as gb18030, big5 or utf-16", unset="detected", metavar="CODEC"
    )
    format: str | None = setting(
        None, f"format of all files: {', '.join(FORMATS)}", unset="detected", choices=FORMATS, metavar="FORMAT"
    )
    map: str | None = setting(
        None,
        "JMESPath expression that selects the pairs or messages, such as '{question: q, answer: a}' or "
        "'messages[].{speaker: from, text: body, time: date}'",
        once=True,
        metavar="EXPRESSION",
    )
    head: str | None = setting(
        None,
        "pattern of the line above each message, such as '{name} ({time}):', or above each answer, such as "
        "'## {question}'",
        once=True,
        metavar="PATTERN",
    )
    dates: str | None = setting(
        None,
        "order of day and month in the dates of chat messages",
        unset="detected",
        choices=("dmy", "mdy"),
    )
    me: str | None = setting(
        None,
        'use only the turns of this person as answers: a name, an account number or "me"; if turns have no names, 1 '
        "for the first speaker or 2 for the second",
        unset="everyone's turns",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding is not None and not _decodes_to_text(self.encoding):
            raise UserError(
                f"--encoding {self.encoding}: not a text encoding of Python; "
                "use one such as utf-8, gb18030, big5 or utf-16"
            )
        if len(self.columns) not in (0, 2):
            raise UserError(f"--columns {' '.join(self.columns)}: give two, the question's and the answer's")
        if self.map is not None and (self.columns or self.head is not None):
            raise UserError(
                f"--map and {'--columns' if self.columns else '--head'} are mutually exclusive; use only one"
            )
        if self.head is not None and self.format is not None:
            raise UserError("--head and --format are mutually exclusive; use only one")


def _decodes_to_text(encoding: str) -> bool:
    try:
        "".encode(encoding)  # raises LookupError for codecs that are not text encodings, such as gzip
        codecs.getincrementaldecoder(encoding)("replace").decode(b"\xff", final=True)
    except (LookupError, ValueError):
        return False
    return True


@dataclasses.dataclass(frozen=True)
class CorpusSettings(FileSettings):
    """Files of pairs, cleaning, tokenizer and cache."""

    source_file: str | None = setting(
        None, "file of questions, one per line; requires --target-file", group="data", metavar="FILE"
    )
    target_file: str | None = setting(
        None, "file of answers, one per line; line N answers line N of --source-file", metavar="FILE"
    )
    clean: tuple[str, ...] = setting(
        ("markup", "control", "equal", "duplicates"),
        "cleaning rules, which replace the default rules: "
        + ", ".join(f"{name} ({text})" for name, text in {**TEXT_RULES, **PAIR_RULES}.items()),
        group="text",
        choices=(*TEXT_RULES, *PAIR_RULES, NONE),
        fixed=True,
        metavar="RULE",
    )
    max_reply_frequency: int | None = setting(
        None, "maximum number of pairs with the same answer; further pairs are dropped", unset="no limit", minimum=1
    )
    block_list: str | None = setting(
        None, "file of blocked words, one per line; pairs that contain a blocked word are dropped", metavar="FILE"
    )
    tokenizer: str = setting(
        "jieba",
        "type of tokens: words (jieba), characters (char), or the pieces of the pretrained model in --init-from",
        choices=("jieba", "char", PIECES),
        fixed=True,
    )
    dictionary: str | None = setting(
        None,
        "user dictionary for jieba, with a word and an optional frequency per line; with --tokenizer pieces, the "
        "tokenizer.json file of the model",
        metavar="FILE",
    )
    cache: str = setting(
        str(CACHE), "cache folder for encoded pairs, which can be deleted at any time", metavar="FOLDER", stored=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if NONE in self.clean and len(self.clean) > 1:
            raise UserError(f"--clean {' '.join(self.clean)}: {NONE} excludes all other values")
        if self.dictionary is not None and self.tokenizer == "char":
            raise UserError(f"--dictionary: not used by --tokenizer {self.tokenizer}; use --tokenizer jieba")
        if self.dictionary is None and self.tokenizer == PIECES:
            raise UserError(f"--tokenizer {PIECES}: needs a pretrained model; give --init-from FOLDER instead")


@dataclasses.dataclass(frozen=True)
class EncodingSettings(Flags):
    """Validation pairs, vocabulary size and history."""

    validation: str = setting(
        AUTO,
        "validation pairs, which are excluded from training; auto: the validation split of the data or, with 2,000 or "
        "more pairs, 5% of the pairs, at most 2,000",
        group="data",
        metavar="auto|none|FILE",
    )
    vocabulary_size: int = setting(
        16000, "maximum size of the vocabulary of bytes, characters and words", minimum=MIN_VOCABULARY, fixed=True
    )
    history: int = setting(
        0,
        "number of previous turns that the model reads with each question",
        minimum=0,
        maximum=MAX_HISTORY,
        fixed=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history and self.vocabulary_size < MIN_VOCABULARY + HISTORY_MARKS:
            raise UserError(
                f"--vocabulary-size {self.vocabulary_size}: with --history, it must be at least "
                f"{MIN_VOCABULARY + HISTORY_MARKS}"
            )


@dataclasses.dataclass(frozen=True)
class InspectSettings(Flags):
    """Settings of `duida data inspect`."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    json: bool = setting(False, "at the end, print the report on each file as a JSON object", group="report")
    fail_on_warnings: bool = setting(False, "exit with code 1 if there are any warnings")


@dataclasses.dataclass(frozen=True)
class EncodeSettings(Flags):
    """Settings of `duida data encode`."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    encoding: EncodingSettings = dataclasses.field(default_factory=EncodingSettings)
    runner: str | None = setting(
        None,
        "Apache Beam runner for encoding the pairs, such as DirectRunner or FlinkRunner",
        unset="encoded on this machine, without Beam",
        group="beam",
    )
    runner_options: str = setting(
        "", "the runner's flags in one string, such as '--flink_master=host:8081'", metavar="TEXT"
    )


@dataclasses.dataclass(frozen=True)
class PairsSettings(Flags):
    """Settings of `duida data pairs`."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    json: bool = setting(
        False, "print each conversation on its own line, as a JSON list of utterances or messages", group="report"
    )


@dataclasses.dataclass(frozen=True)
class PruneSettings(Flags):
    """Settings of `duida data prune`."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    init_from: str = setting(
        ..., "pretrained T5, mT5 or mBART to prune: its folder or name", group="run", metavar="FOLDER"
    )
    output: str = setting(..., "new folder for the pruned model, which train --init-from accepts", metavar="FOLDER")


INSPECT = CommandLine(
    InspectSettings,
    "data inspect",
    about="Nothing on disk is changed.",
    example="pairs.tsv",
    common="data columns map head encoding format me json fail_on_warnings",
    positional="data",
)
ENCODE = CommandLine(
    EncodeSettings,
    "data encode",
    about="Training with the same flags reads the pairs from the cache.",
    example="pairs.tsv",
    common="data columns map head me validation history cache runner",
    positional="data",
)
PAIRS = CommandLine(
    PairsSettings,
    "data pairs",
    about="Each line contains a question, a tab and the answer.",
    example="chat.txt",
    common="data columns map head encoding format me json",
    positional="data",
)
PRUNE = CommandLine(
    PruneSettings,
    "data prune",
    about="Tokens that can spell any other text are kept.",
    example="pairs.tsv --init-from ./mt5-small --output mt5-small-pairs",
    common="data columns map head me init_from output",
    positional="data",
    without="tokenizer dictionary",
)

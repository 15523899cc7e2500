"""Settings of the corpus: its files, and how its text is cleaned, tokenised, encoded and cached."""

import codecs
import dataclasses
from pathlib import Path

from chatbot.command_line import CommandLine
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

DATA = "data"
TEXT = "text"
CACHE = Path("data/cache")
LEAST_VOCABULARY = 262  # special tokens, 256 bytes, and the token of a space
HISTORY_MARKS = 2  # tokens of a vocabulary with history
MOST_HISTORY = 1_000

# Formats of files of pairs. `chatbot.corpus.reading.detect.reader_of` has their readers.
FORMATS = (
    *("tsv", "csv", "jsonl", "json", "yaml", "conv", "lines", "qa", "douban", "eou", "turns", "parlai", "template"),
    *("srt", "ass", "whatsapp", "telegram", "wechat-mail", "qq", "qqnt", "qq-chat-exporter", "weflow"),
    *("wechatexporter", "discord", "line", "kakaotalk", "hexchat", "imessage"),
)
# Rules that change the text of an utterance, in the order in which they are applied.
TEXT_RULES = {
    "markup": "tags and entities of HTML, **bold** of Markdown, the number of a list's item, and a written-out \\n or "
    "_comma_ become what they stand for",
    "nfkc": "Unicode NFKC: full-width letters and punctuation become ASCII",
    "control": "control characters become spaces, and invisible format characters are deleted",
    "spaces": "spaces next to Chinese characters are removed; automatic for a corpus with spaces between its words",
    "simplified": "traditional characters become simplified; needs OpenCC",
    "urls": "web addresses are removed",
    "names": "@names are removed where their end is clear, including Weibo's //@name: and 回复@name:",
    "punctuation": "repeated punctuation is shortened: ！！！ to ！, and to at most three dots",
}
# Rules that drop pairs.
PAIR_RULES = {"equal": "pairs whose answer equals the question", "duplicates": "repeated pairs; the first one stays"}
NONE = "none"
AUTO = "auto"
PIECES = "pieces"


@dataclasses.dataclass(frozen=True)
class FileSettings(Flags):
    """Files of pairs, and how they are read. Raises UserError for a value out of range."""

    data: tuple[str, ...] = setting(
        (),
        "files, folders or globs of pairs, in any usual format",
        unset="the Chinese ChatterBot corpus",
        group=DATA,
        metavar="FILE",
    )
    columns: tuple[str, ...] = setting(
        (),
        "columns or fields of the question and the answer, by name or by number from 1",
        unset="detected",
        count=2,
        metavar="COLUMN",
    )
    encoding: str | None = setting(
        None, "encoding of all files, such as gb18030, big5 or utf-16", unset="detected", metavar="CODEC"
    )
    format: str | None = setting(
        None, f"format of all files: {', '.join(FORMATS)}", unset="detected", choices=FORMATS, metavar="FORMAT"
    )
    map: str | None = setting(
        None,
        "what to read from the objects or rows of all files, in JMESPath: '{question: q, answer: a}', "
        "'messages[].{speaker: from, text: body, time: date}', '{id: id, parent: reply_to, text: text}', "
        "'dialog[].text'",
        once=True,
        metavar="EXPRESSION",
    )
    head: str | None = setting(
        None,
        "the line above or before each message of a text, such as '{name} ({time}):', or before each answer, such as "
        "'## {question}'",
        once=True,
        metavar="PATTERN",
    )
    dates: str | None = setting(
        None,
        "whether the day or the month comes first in the dates of chats, for files in which no date tells",
        choices=("dmy", "mdy"),
    )
    me: str | None = setting(
        None,
        "only this person's turns are answers: a name, a number or me; 1 or 2 where turns have no names",
        unset="all",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding is not None and not _decodes_to_text(self.encoding):
            raise UserError(
                f"--encoding {self.encoding}: not an encoding of text in Python; "
                "use one such as utf-8, gb18030, big5 or utf-16"
            )
        if len(self.columns) not in (0, 2):
            raise UserError(f"--columns {' '.join(self.columns)}: give two, the question's and the answer's")
        if self.map is not None and (self.columns or self.head is not None):
            raise UserError(f"--map: with {'--columns' if self.columns else '--head'}, which says the same; give one")
        if self.head is not None and self.format is not None:
            raise UserError("--head: with --format, which says the same; give one")


def _decodes_to_text(encoding: str) -> bool:
    try:
        "".encode(encoding)  # raises LookupError for codecs between bytes, such as gzip
        codecs.getincrementaldecoder(encoding)("replace").decode(b"\xff", final=True)
    except (LookupError, ValueError):
        return False
    return True


@dataclasses.dataclass(frozen=True)
class CorpusSettings(FileSettings):
    """Files of pairs, cleaning, tokenizer and cache. Raises UserError for a value out of range."""

    source_file: str | None = setting(None, "questions, one per line; needs --target-file", group=DATA, metavar="FILE")
    target_file: str | None = setting(
        None, "answers, one per line; line N answers line N of --source-file", metavar="FILE"
    )
    clean: tuple[str, ...] = setting(
        ("markup", "control", "equal", "duplicates"),
        "cleaning rules to apply, replacing the default ones: "
        + "; ".join(f"{name} ({text})" for name, text in {**TEXT_RULES, **PAIR_RULES}.items()),
        group=TEXT,
        choices=(*TEXT_RULES, *PAIR_RULES, NONE),
        fixed=True,
        metavar="RULE",
    )
    max_reply_frequency: int | None = setting(
        None, "keep at most this many pairs with the same answer", unset="all", least=1
    )
    block_list: str | None = setting(
        None, "file of words, one per line; pairs that contain one are dropped", metavar="FILE"
    )
    tokenizer: str = setting(
        "jieba",
        "tokens are words, characters, or the pieces of a pretrained model (--init-from)",
        choices=("jieba", "char", PIECES),
        fixed=True,
    )
    dictionary: str | None = setting(
        None,
        "user dictionary for jieba: one word per line, optionally followed by its frequency; of pieces, tokenizer.json",
        metavar="FILE",
    )
    cache: str = setting(
        str(CACHE), "folder for encoded pairs; may be deleted at any time", metavar="FOLDER", stored=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if NONE in self.clean and len(self.clean) > 1:
            raise UserError(f"--clean {' '.join(self.clean)}: {NONE} excludes all other values")
        if self.dictionary is not None and self.tokenizer == "char":
            raise UserError(f"--dictionary: --tokenizer {self.tokenizer} has none; use --tokenizer jieba")
        if self.dictionary is None and self.tokenizer == PIECES:
            raise UserError(f"--tokenizer {PIECES}: of a pretrained model; give --init-from FOLDER in its place")


@dataclasses.dataclass(frozen=True)
class EncodingSettings(Flags):
    """The validation pairs, which are excluded from training, and the size of the vocabulary."""

    validation: str = setting(
        AUTO,
        "pairs to validate on, which are not trained on; auto: 5% of a corpus of 2,000 pairs or more, at most 2,000",
        group=DATA,
        metavar="auto|none|FILE",
    )
    vocabulary_size: int = setting(
        16000, "maximum size of the vocabulary: bytes, characters and words", least=LEAST_VOCABULARY, fixed=True
    )
    history: int = setting(
        0, "number of turns before the question that are read with it", least=0, most=MOST_HISTORY, fixed=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history and self.vocabulary_size < LEAST_VOCABULARY + HISTORY_MARKS:
            raise UserError(
                f"--vocabulary-size {self.vocabulary_size}: with --history, it must be at least "
                f"{LEAST_VOCABULARY + HISTORY_MARKS}"
            )


@dataclasses.dataclass(frozen=True)
class InspectSettings(Flags):
    """The settings of python -m chatbot.corpus inspect."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    json: bool = setting(False, "end with one JSON object per file, each on its own line", group="report")
    fail_on_warnings: bool = setting(False, "exit with code 1 if there is a warning")


@dataclasses.dataclass(frozen=True)
class EncodeSettings(Flags):
    """The settings of python -m chatbot.corpus encode."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    encoding: EncodingSettings = dataclasses.field(default_factory=EncodingSettings)
    runner: str | None = setting(
        None, "encode as a pipeline of Apache Beam on this runner, such as DirectRunner or FlinkRunner", group="beam"
    )
    runner_options: str = setting(
        "", "the runner's own flags as one text, such as '--flink_master=host:8081'", metavar="TEXT"
    )


@dataclasses.dataclass(frozen=True)
class PairsSettings(Flags):
    """The settings of python -m chatbot.corpus pairs."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    json: bool = setting(
        False, "write a conversation on each line, as a list of utterances or of messages", group="report"
    )


@dataclasses.dataclass(frozen=True)
class PruneSettings(Flags):
    """The settings of python -m chatbot.corpus prune."""

    corpus: CorpusSettings = dataclasses.field(default_factory=CorpusSettings)
    init_from: str = setting(..., "pretrained T5, mT5 or mBART: its folder or name", group="run", metavar="FOLDER")
    output: str = setting(..., "folder to write, which must not exist yet, for train --init-from", metavar="FOLDER")


INSPECT = CommandLine(
    InspectSettings,
    "data inspect",
    "Changes nothing on disk.",
    "pairs.tsv",
    "data columns map head encoding format me json fail_on_warnings",
    positional="data",
)
ENCODE = CommandLine(
    EncodeSettings,
    "data encode",
    "Training with the same flags finds them there.",
    "pairs.tsv",
    "data columns map head me validation history cache runner",
    positional="data",
)
PAIRS = CommandLine(
    PairsSettings,
    "data pairs",
    "A line has a question, a tab and its answer.",
    "chat.txt",
    "data columns map head encoding format me json",
    positional="data",
)
PRUNE = CommandLine(
    PruneSettings,
    "data prune",
    "It keeps the tokens that spell everything else, too.",
    "pairs.tsv --init-from ./mt5-small --output mt5-small-pairs",
    "data columns map head me init_from output",
    positional="data",
    without="tokenizer dictionary",
)

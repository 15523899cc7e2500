"""How a corpus is read, cleaned, cut into words and kept: what training, inspect and encode are all told."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from chatbot.errors import UserError
from chatbot.flags import check_fields, setting

DATA, TEXT = "data", "text"
CACHE = Path("data/cache")

# Each rule changes the text of utterances, in this order, ...
TEXT_RULES = {
    "nfkc": "Unicode's NFKC: full-width letters and punctuation become ASCII",
    "control": "control and other invisible characters become spaces",
    "spaces": "spaces beside Chinese characters are taken out, as a corpus that comes cut into words has them",
    "simplified": "traditional characters become simplified ones (needs OpenCC)",
    "urls": "web addresses are taken out",
    "names": "@names are taken out, and with them Weibo's //@name: and 回复@name:",
    "punctuation": "repeated punctuation becomes one: ！！！ ！, and three dots at most",
}
# ... or leaves out pairs.
PAIR_RULES = {
    "equal": "pairs whose answer is the question",
    "duplicates": "pairs that stood before, question and answer alike",
}
NONE = "none"


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """Files, and what is done to their pairs before words have numbers. Raises UserError for a value out of range."""

    data: tuple[str, ...] = setting(
        (),
        DATA,
        "question-answer pairs, in any of the formats in data/README.md; globs are expanded; "
        "default: the Chinese ChatterBot corpus",
        many=True,
        metavar="FILE",
    )
    source_file: str | None = setting(None, DATA, "questions, one a line, beside --target-file", metavar="FILE")
    target_file: str | None = setting(None, DATA, "answers, one a line, to --source-file", metavar="FILE")
    columns: tuple[str, ...] = setting(
        (),
        DATA,
        "question's and answer's column of a .csv or .tsv, or field of a .json, by name or number from 1",
        many=True,
        count=2,
        metavar="COLUMN",
    )
    clean: tuple[str, ...] = setting(
        ("control", "equal", "duplicates"),
        TEXT,
        "cleaning rules that are on, instead of the default ones: "
        + "; ".join(f"{name} ({text})" for name, text in {**TEXT_RULES, **PAIR_RULES}.items()),
        many=True,
        choices=(*TEXT_RULES, *PAIR_RULES, NONE),
        fixed=True,
        metavar="RULE",
    )
    min_characters: int = setting(
        1, TEXT, "pairs with a shorter question or answer are left out; spaces do not count", kind=int, least=1
    )
    max_characters: int | None = setting(
        None, TEXT, "pairs with a longer question or answer are left out", kind=int, least=1
    )
    max_reply_frequency: int | None = setting(
        None, TEXT, "of the pairs with one and the same reply, this many stay", kind=int, least=1
    )
    block_list: str | None = setting(
        None, TEXT, "words, one a line; pairs that contain one are left out", metavar="FILE"
    )
    tokenizer: str = setting(
        "jieba", TEXT, "what cuts text into tokens: words, or characters", choices=("jieba", "char"), fixed=True
    )
    dictionary: str | None = setting(
        None, TEXT, "user dictionary for jieba: a word, and if you like its frequency, a line", metavar="FILE"
    )
    cache: str = setting(
        str(CACHE), TEXT, "folder for encoded pairs, which may be removed at any time", metavar="FOLDER", stored=False
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_none("clean", self.clean)
        if len(self.columns) not in (0, 2):
            raise UserError(f"--columns {' '.join(self.columns)}: two are needed, the question's and the answer's")
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise UserError(f"--max-characters {self.max_characters}: less than --min-characters {self.min_characters}")
        if self.dictionary is not None and self.tokenizer != "jieba":
            raise UserError(f"--dictionary: only jieba has one, not --tokenizer {self.tokenizer}")


def check_none(name: str, values: Sequence[str]) -> None:
    """Raises UserError where a flag that names several things names none and something."""
    if NONE in values and len(values) > 1:
        raise UserError(f"--{name} {' '.join(values)}: {NONE} stands alone")


def text_settings(settings: TextSettings) -> TextSettings:
    """These of a command's settings."""
    return TextSettings(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(TextSettings)})


@dataclasses.dataclass(frozen=True)
class EncodingSettings(TextSettings):
    """And what gives each token its number."""

    validation: str | None = setting(None, DATA, "pairs to validate on, which are never trained on", metavar="FILE")
    vocabulary_size: int = setting(
        16000,
        DATA,
        "most entries in the vocabulary: every character seen, then the most frequent words",
        kind=int,
        least=5,
        fixed=True,
    )


@dataclasses.dataclass(frozen=True)
class InspectSettings(TextSettings):
    """What python -m chatbot.corpus inspect is told."""

    json: bool = setting(False, "report", "end with one JSON object a file, a line each", kind=bool)
    fail_on_warnings: bool = setting(False, "report", "exit code 1 when there is a warning", kind=bool)


@dataclasses.dataclass(frozen=True)
class EncodeSettings(EncodingSettings):
    """What python -m chatbot.corpus encode is told."""

    runner: str | None = setting(
        None, "Apache Beam", "encode as a Beam pipeline on this runner, such as DirectRunner or FlinkRunner"
    )
    runner_options: str = setting(
        "", "Apache Beam", "the runner's own flags in one text, such as '--flink_master=host:8081'", metavar="TEXT"
    )

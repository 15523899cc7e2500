"""The formats, and detection of a text's format: the name of the file is evidence, the content is proof.

A layout that no other text has is recognised under any name. A name such as chats.csv decides where the content could
be a table as well as prose, and a name that the content contradicts, such as that of a .json file without JSON, is an
error. Where neither tells enough, the format is in doubt: the first pairs are shown, and the user names the format.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.formats import chat_logs, corpora, line_pairs, questions, subtitles, tables
from chatbot.corpus.reading.formats.dialect import dialect_of
from chatbot.corpus.reading.formats.json_files import is_json, is_json_lines, read_json, read_json_lines
from chatbot.corpus.reading.formats.telegram import is_telegram, read_telegram
from chatbot.corpus.reading.formats.yaml_files import is_yaml, read_yaml
from chatbot.corpus.reading.open.text_file import TextFile
from chatbot.corpus.reading.report import DETECTED, ReadOptions, Report
from chatbot.errors import UserError


class Format(NamedTuple):
    """A format of texts."""

    name: str
    read: Callable[[TextFile, ReadOptions, Report], Iterator[Pair]]
    matches: Callable[[TextFile], bool | str]  # whether a text has this format; if in doubt, why


# Endings of names that promise a format that is marked, and what the text lacks without it.
PROMISES = {
    **dict.fromkeys(("json", "jsonl", "ndjson"), "not JSON"),
    **dict.fromkeys(("srt", "vtt", "ass", "ssa"), "no times of subtitles"),
}

# The formats in the order in which they are tried: first those whose layout no other text has.
MARKED = (
    Format("ass", subtitles.read_ass, subtitles.is_ass),
    Format("srt", subtitles.read_srt, subtitles.is_srt),
    Format("whatsapp", chat_logs.reader_of("whatsapp"), chat_logs.matcher_of("whatsapp")),
    Format("qq", chat_logs.reader_of("qq"), chat_logs.is_qq),
    Format("telegram", read_telegram, is_telegram),
    Format("jsonl", read_json_lines, is_json_lines),
    Format("json", read_json, is_json),
)
OTHERS = (
    *(Format(name, chat_logs.reader_of(name), chat_logs.matcher_of(name)) for name in chat_logs.APPLICATIONS),
    Format("conv", corpora.read_conv, corpora.is_conv),
    Format("yaml", read_yaml, is_yaml),
    Format("template", corpora.read_template, corpora.is_template),
    Format("ubuntu", corpora.read_ubuntu, corpora.is_ubuntu),
    Format("messages", tables.read_message_rows, tables.is_messages),
    Format("qa", questions.read_question_lines, questions.is_question_lines),
    Format("eou", corpora.read_eou, corpora.is_eou),
    Format("douban", corpora.read_douban, corpora.is_douban),
    Format("tsv", tables.read_tsv, tables.is_tsv),
    Format("headings", questions.read_headings, questions.is_headings),
    Format("lines", line_pairs.read_line_pairs, line_pairs.is_line_pairs),
    Format("csv", tables.read_csv, tables.is_csv),
    Format("speakers", chat_logs.read_speakers, chat_logs.is_speakers),
    Format("csv", tables.read_csv, tables.may_be_csv),
    Format("lines", line_pairs.read_line_pairs, line_pairs.may_be_line_pairs),
)
FORMATS = {each.name: each for each in (*MARKED, *OTHERS)}


def detect_format(text: TextFile, options: ReadOptions = DETECTED) -> tuple[str, str]:
    """Return the format of a text, "" if it is unknown, and why it may be another, "" if it is clear.

    options: with columns, the text is a table. Raises UserError if the content contradicts the name of the file.
    """
    filled = [line for line in text.first_lines if line.strip()]
    if sum("\0" in line for line in filled) * 2 >= len(filled):
        return "", ""  # blank, or a binary file, such as a picture
    formats = [each for each in OTHERS if each.name != "messages"] if options.columns else OTHERS
    for each in (*MARKED, *formats):
        if each is OTHERS[0] and text.ending in PROMISES:
            raise UserError(
                f"{text.place}: named .{text.ending}, but {PROMISES[text.ending]}: it begins with "
                f"{one_line(filled[0].strip(), 30)!r}; give --format"
            )
        if options.columns and each.name == "csv" and dialect_of(text.first_lines, 0):
            return "csv", ""
        if match := each.matches(text):
            return each.name, match if isinstance(match, str) else ""
    return "", ""


def refusal(text: TextFile) -> UserError:
    """Return the error about a text that is left out: of unknown format, damaged, or no text."""
    begins = one_line(text.sample.strip(), 30)
    remedy = "write one pair on each line: question, tab, answer; or give --format"
    return UserError(f"{text.place}: {text.damage or f'unknown format, it begins with {begins!r}; {remedy}'}")

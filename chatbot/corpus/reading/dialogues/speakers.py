"""Lines that begin with a name, as scripts, interviews and notes of talks have them: "小明：在吗", "<ann> hi".

A time may stand before the name, and the text may begin on the next line. Such lines may also be a list of terms or a
recipe, so the format is read only if the user names it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from chatbot.corpus.reading.chat_messages import Message, pairs_of_messages, with_line
from chatbot.corpus.reading.files.lines import is_rule, lines
from chatbot.corpus.reading.files.text_file import TextFile, first_lines
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report

FEW = 20  # names
SHARE = 0.4  # of the lines begin with one; texts below their names have as many lines: wechat_phone.txt

_SPEAKER = re.compile(
    r"(?:\W?[\d:/.-]{4,10}(?: ?[AP]M)?\W{1,3})?"
    r"(?:[\[【](?P<bracket>[^\[\]【】:：\d]{1,20})[\]】]\s*[:：]?\s*|<[ @+%&~]?(?P<nick>[^<>\s]{1,30})>\s"
    r"|(?P<name>[^\s:：,，。\d<>\[\]{}()=\"'][^:：,，。！？!?\t=\"{}()]{0,29})[:：](?!//|\d))(?P<text>.*)"
    r"|\[\d{1,2}:\d{2}(?: ?[AP]M)?\] (?P<timed>[^:：,，。！？!?]{1,30})"
)


def speakers_of(sample: Sequence[str]) -> list[str]:
    """Return the names with which most lines begin; [] if they are too few or too many for a talk."""
    names = Counter(_name(match) for line in sample if (match := _SPEAKER.fullmatch(line.strip())))
    repeated = {name: count for name, count in names.items() if count > 1}
    filled = sum(line.strip() != "" for line in sample)
    if repeated and 1 < len(names) <= FEW and names.total() == filled:
        return list(names)
    if not 1 < len(repeated) <= FEW or sum(repeated.values()) < SHARE * filled:
        return []
    return list(repeated) if 2 * sum(repeated.values()) >= names.total() + len(repeated) else []


def read_speakers(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of the speakers' turns. Raises UserError if `options.me` says nothing."""
    return pairs_of_messages(_messages(text, report), options, report, text.place)


def _name(match: "re.Match[str]") -> str:
    return (match["bracket"] or match["nick"] or match["name"] or match["timed"]).strip()


def _messages(text: TextFile, report: Report) -> Iterator[Message | None]:
    names = {*speakers_of(first_lines(text))}
    current: Message | None = None
    for number, line in lines(text, report):
        match = _SPEAKER.fullmatch(line.strip()) if line else None
        if line is None:
            current = None
            yield None  # a line is missing
        elif is_rule(line):
            if current is not None:
                yield current
            current = None
            yield None  # another talk
        elif match and (_name(match) in names or not names):
            if current is not None:
                yield current
            current = Message(_name(match), (_name(match),), None, match["text"] or "")
        elif current is not None:
            current = with_line(current, line)
        elif line.strip():
            report.drop("lines before the first name", f"{text.place}, line {number}")
    if current is not None:
        yield current

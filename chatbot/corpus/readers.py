"""From a file to (question, answer) pairs of text, as they stand there.

A format is one function from (path, report) to pairs; READERS names it by the file's ending.
"""

import importlib.resources
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import yaml

from chatbot.corpus.report import Report
from chatbot.errors import UserError

Pair = tuple[str, str]


def read_file(path: str | Path, report: Report) -> Iterator[Pair]:
    """The pairs of one file, in its order. What cannot be used is counted in the report.

    Raises UserError when the file is missing, unreadable, binary, mostly not UTF-8, or of an unknown format.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    try:
        if path.is_dir():
            raise UserError(f"{path}: a directory; name a file such as {path / 'pairs.tsv'}")
        if not path.exists():
            raise UserError(f"{path}: no such file; check the path")
        if reader is None:
            known = ", ".join(READERS)
            raise UserError(f"{path}: unknown format {path.suffix or '(no ending)'!r}; known are {known}")
        yield from reader(path, report)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _lines(path: Path, report: Report) -> Iterator[tuple[str, str]]:
    """(place, text) of each line that is UTF-8; a byte order mark is passed over."""
    count = undecodable = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if b"\0" in raw:
                raise UserError(f"{path}, line {number}: a NUL byte, so not a text file; give UTF-8 text")
            place = f"{path}, line {number}"
            count += 1
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                undecodable += 1
                report.drop("lines not UTF-8", place)
                continue
            yield place, text.rstrip("\r\n")
    if undecodable * 2 > count:
        raise UserError(
            f"{path}: not UTF-8 ({undecodable:,} of {count:,} lines); "
            f"if it is GBK: iconv -f GB18030 -t UTF-8 {path} > utf8-{path.name}"
        )


def read_tsv(path: Path, report: Report) -> Iterator[Pair]:
    """A line a pair: question, tab, answer. Lines that are blank are not counted."""
    for place, line in _lines(path, report):
        fields = line.split("\t")
        if len(fields) == 2:
            yield fields[0], fields[1]
        elif line.strip():
            report.drop("lines without a tab" if len(fields) < 2 else "lines with more than one tab", place)


def read_jsonl(path: Path, report: Report) -> Iterator[Pair]:
    """A line a conversation: a JSON list of utterances. Every adjacent two make a pair."""
    for place, line in _lines(path, report):
        if not line.strip():
            continue
        try:
            utterances = json.loads(line)
        except (ValueError, RecursionError):
            report.drop("lines that are not JSON", place)
            continue
        if not isinstance(utterances, list) or not all(isinstance(u, str) for u in utterances):
            report.drop("lines that are not a list of utterances", place)
        elif len(utterances) < 2:
            report.drop("conversations of one utterance", place)
        else:
            yield from pairwise(utterances)


def read_chatterbot() -> Iterator[Pair]:
    """The Chinese pairs of the ChatterBot corpus, from its package (BSD licence), in a fixed order."""
    folder = importlib.resources.files("chatterbot_corpus") / "data" / "chinese"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        for conversation in yaml.safe_load(file.read_text(encoding="utf-8"))["conversations"]:
            yield from pairwise(conversation)


READERS: dict[str, Callable[[Path, Report], Iterator[Pair]]] = {
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
}

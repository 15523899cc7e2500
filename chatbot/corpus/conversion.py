"""The pairs that training would read, as text: one on each line, or a conversation on each."""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TextIO

import xxhash

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.chunks import clean_pairs
from chatbot.corpus.files import CorpusFiles, read_in_chunks
from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP, Pair
from chatbot.corpus.reading.report import Report
from chatbot.corpus.workers import progress_bar

_MEMORY = 2**24  # characters that wait in memory; more wait on the disk


def write_pairs(files: CorpusFiles, conversations: bool, output: TextIO, notes: TextIO) -> None:
    """Write the pairs of all files once all could be read. Raises UserError, with nothing written, otherwise.

    conversations: whether to write lines of JSON, which this program reads as the same pairs with the same links.
    """
    size = sum(path.stat().st_size for source in files.sources for path in source.paths)
    seen: Counter[int] = Counter()
    with tempfile.SpooledTemporaryFile(_MEMORY, "w+", encoding="utf-8", newline="") as written:
        with progress_bar("Reading", size, "B") as bar:
            before = 0
            for source in files.sources:
                report = Report(source.name)
                for first, raw in read_in_chunks(source, report, files.options):
                    pairs = clean_pairs(raw, first, report, files.settings)
                    if conversations:
                        written.writelines(_conversations(pairs))
                    else:
                        written.writelines(map(_line, _selected(pairs, files.settings, seen)))
                    bar.update(before + report.read_bytes - bar.n)
                before += report.read_bytes
                for line in (*(f"left out: {line}" for line in report.lines()), *report.notes()):
                    print(f"{source.name}: {line}", file=notes)
        written.seek(0)
        shutil.copyfileobj(written, output)


def _selected(pairs: Iterator[Pair], settings: CorpusSettings, seen: Counter[int]) -> Iterator[Pair]:
    """Yield the pairs that training selects. seen: how often each pair and answer came before, by their hashes."""
    most = settings.max_reply_frequency
    for pair in pairs:
        key = xxhash.xxh3_64_intdigest(f"{pair[0]}\0{pair[1]}".encode())
        answer = xxhash.xxh3_64_intdigest(pair[1].encode())
        is_repeated = "duplicates" in settings.clean and key in seen
        if not is_repeated and (most is None or seen[answer] < most):
            seen[key] += 1
            seen[answer] += 1
            yield pair


_SPACES = str.maketrans(dict.fromkeys("\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))


def _line(pair: Pair) -> str:
    return f"{pair[0].translate(_SPACES)}\t{pair[1].translate(_SPACES)}\n"


def _conversations(pairs: Iterator[Pair]) -> Iterator[str]:
    """Yield a line for each conversation: a list of utterances that answer each other, or messages with roles."""
    turns: list[str] = []
    kind = NEW  # OVERLAP or NEXT, once a conversation has two pairs
    for question, answer, link in chain(pairs, (("", "", NEW),)):
        if link == OVERLAP and kind != NEXT and turns and turns[-1] == question:
            turns.append(answer)
            kind = OVERLAP
        elif link == NEXT and kind != OVERLAP and turns:
            turns += question, answer
            kind = NEXT
        else:
            if turns:
                yield json.dumps(_messages(turns) if kind == NEXT else turns, ensure_ascii=False) + "\n"
            turns, kind = [question, answer], NEW


def _messages(turns: list[str]) -> dict[str, object]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]}

"""The pairs that training would read, as text: one on each line, or a conversation on each."""

import html
import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, compress, cycle
from typing import TextIO

import numpy as np

from chatbot.config.corpus import PairsSettings
from chatbot.corpus.chunks import clean_pairs, hashes_of
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.files import CorpusFiles, read_in_chunks, training_files, without_word_spaces
from chatbot.corpus.history import pair_hashes
from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP, Pair
from chatbot.corpus.reading.marked_text import labelled
from chatbot.corpus.reading.report import Report
from chatbot.corpus.selection import Selection, select
from chatbot.corpus.workers import progress_bar
from chatbot.display import one_line
from chatbot.errors import UserError

_MEMORY = 2**24  # characters that wait in memory; more wait on the disk
_SPACES = str.maketrans(dict.fromkeys("\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))


def convert(settings: PairsSettings) -> None:
    """Write the pairs to standard output, and what was left out to standard error. Raises UserError."""
    write_pairs(training_files(without_word_spaces(settings.corpus, sys.stderr)), settings.json, sys.stdout, sys.stderr)


def write_pairs(files: CorpusFiles, as_json: bool, output: TextIO, notes: TextIO) -> None:
    """Write the pairs of all files once all could be read.

    as_json: whether to write lines of JSON, which this program reads as the same pairs with the same links.
    Raises UserError, with nothing written, where a file cannot be read, or changes, or there are no pairs.
    """
    size = sum(size for _, size in files.dates)
    hashes = [np.zeros(0, np.uint64)]  # of the questions and answers on the lines
    with tempfile.SpooledTemporaryFile(_MEMORY, "w+", encoding="utf-8", newline="") as written:
        with progress_bar("Reading", size, "B") as bar:
            before = 0
            for source in files.sources:
                report = Report(source.name)
                for first, raw in read_in_chunks(source, report, files.options):
                    pairs = list(clean_pairs(raw, first, report, files.settings))
                    if as_json:
                        lines = conversations(pairs, files.settings.clean)
                        written.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
                    else:
                        written.writelines(f"{q.translate(_SPACES)}\t{a.translate(_SPACES)}\n" for q, a, _ in pairs)
                        hashes.append(hashes_of(text for pair in pairs for text in pair[:2]))
                    bar.update(before + report.read_bytes - bar.n)
                before += report.read_bytes
                for line in (*(f"left out: {line}" for line in report.lines()), *report.notes()):
                    print(f"{source.name}: {line}", file=notes)
        files.check_unchanged()
        if not written.tell():
            names = one_line(", ".join(source.name for source in files.sources), 80)
            raise UserError(f"{names}: no pairs; the lines above say what was left out, inspect what was found")
        written.seek(0)
        if as_json:
            shutil.copyfileobj(written, output)
        else:
            kept, _ = select(
                pair_hashes(np.concatenate(hashes), np.zeros(0, np.uint8), 0), Selection.of(files.settings)
            )
            output.writelines(compress(written, kept))


def conversations(pairs: Iterable[Pair], rules: Collection[str]) -> Iterator[object]:
    """Yield each conversation as a value of JSON. rules: of cleaning, by which its texts will be cleaned again."""
    without_markup = cleaner([rule for rule in rules if rule == "markup"])
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
                texts = [text if without_markup(text) == text else html.escape(text, quote=False) for text in turns]
                yield _conversation(texts, kind)
            turns = [question, answer]
            kind = NEW


def _conversation(turns: list[str], kind: int) -> object:
    """Return a conversation of utterances that answer each other, or messages with roles.

    Of utterances, what stands before a colon in each would be read as the name of a speaker.
    """
    has_labels = labelled(turns) is not None
    if kind == NEXT or (has_labels and kind == NEW):
        roles = cycle(("user", "assistant"))
        return {"messages": [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]}
    if has_labels:
        *history, question, answer = turns
        return {"question": question, "answer": answer, "history": history}
    return {"conversation": turns}
